"""Receives events over HTTP, writes them to disk before it responds, and delivers them to a bucket, a stream or a
topic.
"""
