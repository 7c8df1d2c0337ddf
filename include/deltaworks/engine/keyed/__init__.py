"""Keyed tables: the newest row of each key, merged from the log of the table that keeps every row."""
