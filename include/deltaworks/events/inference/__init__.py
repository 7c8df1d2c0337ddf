"""Schemas inferred from samples of payloads."""
