"""Remediation: what a rule that fires makes the traffic do, verified, and taken back where it does not help."""
