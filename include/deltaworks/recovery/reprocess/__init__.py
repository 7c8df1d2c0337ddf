"""Reads landed objects again and replaces their rows."""
