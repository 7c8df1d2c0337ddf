"""Schema inference from samples of payloads."""
