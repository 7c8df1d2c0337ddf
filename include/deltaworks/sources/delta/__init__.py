"""Delta tables as a source."""
