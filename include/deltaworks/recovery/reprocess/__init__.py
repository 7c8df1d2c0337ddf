"""Reads landed objects or records again and replaces their rows."""
