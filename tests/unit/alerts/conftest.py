"""A test clock, and object stores for the control storage."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = START

    def advance(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()
