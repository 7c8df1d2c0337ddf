"""Runs the demo: sends events, queries the resulting tables, and compares each result with the expected one."""
