"""Reads quarantined rows and lands them once the cause is fixed."""
