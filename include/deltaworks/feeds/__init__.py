"""Feeds: changed rows of gold tables and views, delivered to others at least once, in order by key."""
