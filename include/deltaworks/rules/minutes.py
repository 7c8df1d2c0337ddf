"""Event minutes: counted since 1970 in UTC, and written by their start."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def minute_of(at: datetime) -> int:
    """The minute that a moment lies in."""
    return int(at.timestamp() // 60)


def minute_start(minute: int) -> datetime:
    """Its start."""
    return _EPOCH + timedelta(minutes=minute)


@lru_cache(maxsize=8192)
def minute_text(minute: int) -> str:
    """Its start as it is written everywhere: 2024-03-01T22:56Z."""
    return f"{minute_start(minute):%Y-%m-%dT%H:%MZ}"


@lru_cache(maxsize=8192)
def parse_minute(text: str) -> int:
    """What `minute_text` wrote.

    Raises:
        ValueError: it is none.
    """
    return minute_of(datetime.strptime(text, "%Y-%m-%dT%H:%MZ").replace(tzinfo=UTC))
