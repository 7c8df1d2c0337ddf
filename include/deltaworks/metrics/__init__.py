"""Figures for Prometheus, from the same small control objects that health and the console read."""
