"""Quarantined rows: reading them, and landing them once the cause is mended."""
