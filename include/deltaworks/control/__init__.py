"""What keeps jobs apart and on record: objects, paths, lease, stop flag, heartbeat, prepared batches."""
