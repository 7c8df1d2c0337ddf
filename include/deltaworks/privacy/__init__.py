"""Personal data: tokens, redaction of events, keys, envelope encryption and the suppression list."""
