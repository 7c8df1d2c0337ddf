"""Metrics for Prometheus, read from the same small control objects as the health check and the console."""
