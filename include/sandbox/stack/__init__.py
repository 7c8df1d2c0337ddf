"""The embedded stack: its programs under a supervisor, their ports and secrets, start, stop and status."""
