"""Runs the collector on a lake, as a process or an AWS Lambda, with the keys and suppression lists of its sources."""
