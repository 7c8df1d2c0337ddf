"""Lands files in landing buckets as producers do: splits them between events, compresses them, and creates each object
once.
"""
