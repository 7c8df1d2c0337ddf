"""Keyed tables: the latest row per key, merged from a history table with all rows."""
