"""Columns for events nobody has declared: found in a bounded sample, kept in versions, changed by stated rules."""
