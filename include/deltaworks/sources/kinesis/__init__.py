"""Streams of Kinesis as a source."""
