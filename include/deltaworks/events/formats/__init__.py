"""Payload formats: one module per format splits payloads into events."""
