"""Records on shared storage that are written once, or replaced only as they were read."""
