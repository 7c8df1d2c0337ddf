"""Proposes the declaration of a new pipeline: samples events, infers fields and types, and writes the YAML."""
