"""Feeds: deliver changed rows of gold tables and views to other systems, at least once, in order per key."""
