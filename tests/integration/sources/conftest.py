"""The same landing side as the unit tests have."""

from __future__ import annotations

from tests.unit.sources.conftest import aws_endpoint, landing

__all__ = ["aws_endpoint", "landing"]
