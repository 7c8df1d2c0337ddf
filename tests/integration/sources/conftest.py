"""Provides the landing fixtures of the unit tests."""

from __future__ import annotations

from tests.unit.sources.conftest import aws_endpoint, landing

__all__ = ["aws_endpoint", "landing"]
