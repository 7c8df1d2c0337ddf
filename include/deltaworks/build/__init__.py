"""Builds what Spark needs before it starts: the Java toolchain, resolved jars with their lock, and a class archive."""
