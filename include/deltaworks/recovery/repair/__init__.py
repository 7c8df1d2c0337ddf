"""Repairs damaged tables, logs and checkpoints."""
