"""Puts tables back to an earlier version."""
