"""Small objects that pages read: derived, bounded, written by whoever knows what they say. Nothing decides by them."""
