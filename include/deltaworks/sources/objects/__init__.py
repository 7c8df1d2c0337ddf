"""Objects in landing buckets, read in the order of a relay's file event log."""
