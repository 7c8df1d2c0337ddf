"""Remediation: shifts traffic when a rule fires, verifies the effect, and rolls back if it does not help."""
