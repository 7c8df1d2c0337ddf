"""The embedded stack: every real part on one machine, supervised."""
