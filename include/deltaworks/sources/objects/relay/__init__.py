"""The relay: records the objects that notifications and listings report in the file event log, each object once."""
