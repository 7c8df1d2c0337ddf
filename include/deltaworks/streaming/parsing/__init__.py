"""Parsing: from the bytes of a payload to the rows of each table, and what does not fit with its reasons."""
