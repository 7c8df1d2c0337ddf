"""The streaming engine: a batch of source events lands in all its tables exactly once."""
