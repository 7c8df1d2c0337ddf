"""Rows that were landed and change: what requests come to, and bringing tables there."""
