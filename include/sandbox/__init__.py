"""Runs a complete lakehouse on one machine: the embedded stack, the demo and experiments. The product never
imports it."""
