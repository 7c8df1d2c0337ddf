"""Keyed tables: the latest row per key, merged from the history table that has all rows."""
