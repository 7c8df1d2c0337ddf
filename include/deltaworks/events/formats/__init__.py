"""The formats of payloads, a module each: how the events of one are split."""
