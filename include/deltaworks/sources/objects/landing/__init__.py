"""Lands files in landing buckets as producers do: split between events, compressed, named, each exactly once."""
