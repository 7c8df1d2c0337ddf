"""Tokens in place of personal data: envelope encryption, redaction of events and the suppression list."""
