"""Runs the demo: sends events, queries the answers, and compares each with the truth."""
