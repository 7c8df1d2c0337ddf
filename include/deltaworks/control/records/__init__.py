"""Records on shared storage: written once, or replaced by compare-and-swap."""
