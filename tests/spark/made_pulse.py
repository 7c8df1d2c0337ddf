"""A pipeline of counts, declared up to its tables, which each test adds."""

from __future__ import annotations

HEAD = """\
pipeline: pulse
description: counts
owner: tests
source: {kind: s3_sqs, relay: landing, bucket: landing}
event: {name: {path: name}, time: {path: time}}
"""
