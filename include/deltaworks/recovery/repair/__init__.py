"""Mends damaged tables, logs and checkpoints."""
