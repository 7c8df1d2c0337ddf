"""Mutations: resolves change requests and merges the result into tables."""
