"""Look-ups that enrich events, and masks for their private fields, applied while parsing."""
