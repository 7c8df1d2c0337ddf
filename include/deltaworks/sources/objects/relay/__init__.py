"""The relay: writes notifications and listings to the file event log, each object once."""
