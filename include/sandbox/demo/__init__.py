"""The demo: events in, answers out, each compared with the truth."""
