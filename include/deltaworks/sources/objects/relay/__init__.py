"""The relay: turns notifications and listings into the file event log, each object once."""
