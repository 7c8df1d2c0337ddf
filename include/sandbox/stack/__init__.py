"""The embedded stack: supervised programs, their ports and secrets, and its start, stop and status."""
