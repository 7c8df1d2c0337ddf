"""Metrics for Prometheus, from the same small control objects as health and the console."""
