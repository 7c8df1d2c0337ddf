"""The demo: events in, answers out, each held against the truth."""
