"""Infers schemas from samples of payloads."""
