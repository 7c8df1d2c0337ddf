"""Event minutes: integers counted since 1970 in UTC, formatted as their start time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def minute_of(at: datetime) -> int:
    """Returns the minute of a time."""
    return int(at.timestamp() // 60)


def minute_start(minute: int) -> datetime:
    """Returns the start of a minute."""
    return _EPOCH + timedelta(minutes=minute)


@lru_cache(maxsize=8192)
def minute_text(minute: int) -> str:
    """Formats a minute as its start time, for example 2024-03-01T22:56Z."""
    return f"{minute_start(minute):%Y-%m-%dT%H:%MZ}"


@lru_cache(maxsize=8192)
def parse_minute(text: str) -> int:
    """Parses a minute formatted by `minute_text`.

    Raises:
        ValueError: the text is not a minute.
    """
    return minute_of(datetime.strptime(text, "%Y-%m-%dT%H:%MZ").replace(tzinfo=UTC))
