"""Flags copies that producers sent, by ids within a window."""
