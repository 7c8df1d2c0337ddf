"""What a pipeline reads: the declaration of each kind of source."""
