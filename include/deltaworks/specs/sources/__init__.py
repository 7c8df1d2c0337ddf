"""Specs of all kinds of sources."""
