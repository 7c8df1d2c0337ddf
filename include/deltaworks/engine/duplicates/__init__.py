"""Flags producers' duplicates by event id within a time window."""
