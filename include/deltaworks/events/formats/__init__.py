"""Payload formats: each splits payloads into events."""
