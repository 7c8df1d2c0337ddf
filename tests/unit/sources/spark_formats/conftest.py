"""Provides the queues and buckets of the relay's tests."""

from __future__ import annotations

from tests.unit.sources.conftest import aws_endpoint, landing

__all__ = ["aws_endpoint", "landing"]
