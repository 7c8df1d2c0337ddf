"""Experiments that compare table layouts with configurable data sizes."""
