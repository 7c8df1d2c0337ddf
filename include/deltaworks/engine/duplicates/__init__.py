"""Flags events that producers sent twice, by event id within a time window."""
