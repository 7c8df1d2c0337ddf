"""Restores tables to an earlier version."""
