"""What console pages read of tables, in a process outside the API server."""
