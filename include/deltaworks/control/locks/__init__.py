"""Locks between writers: the lease of a stream, the exclusive lock of a job, the write turn of a table."""
