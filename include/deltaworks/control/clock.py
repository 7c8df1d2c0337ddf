"""Wall-clock time in UTC for records. Durations use `time.monotonic()` instead."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
#: Range of a datetime (years 1 to 9999), in microseconds since 1970.
EARLIEST_US = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
LATEST_US = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND


def utc_now() -> datetime:
    """Returns the current time, timezone-aware, in UTC."""
    return datetime.now(UTC)


def iso_now() -> str:
    """Returns the current time as ISO 8601 with milliseconds."""
    return utc_now().isoformat(timespec="milliseconds")


def parse_iso(text: str | None) -> datetime | None:
    """Parses an ISO 8601 time; times without a zone are UTC. Returns None for an empty text."""
    if not text:
        return None
    instant = datetime.fromisoformat(text)
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def instant_or_none(value: Any) -> datetime | None:
    """Parses a time of a record that may be damaged; None if it is no time."""
    try:
        return parse_iso(value)
    except (ValueError, TypeError):
        return None


def parse_range_end(text: str | None) -> datetime | None:
    """Parses the end of a time range, as exclusive instant: a date ends with its last moment, a time is the end itself.

    Returns None for an empty text.
    """
    at = parse_iso(text)
    try:
        return None if at is None else at + (timedelta(days=1) if _is_date(text or "") else timedelta())
    except OverflowError as error:
        raise ValueError(f"{text!r} is too late") from error


def parse_time_range(text: str) -> tuple[datetime, datetime]:
    """Parses `A..B`, or a single date, to its start and exclusive end. Dates are inclusive.

    Raises:
        ValueError: the text is no range, or the range is empty; the message is a clause.
    """
    first, separator, last = (part.strip() for part in text.partition(".."))
    if not separator and _is_date(first):
        last = first
    start, end = parse_iso(first), parse_range_end(last)
    if start is None or end is None:
        raise ValueError(f"{text!r} has no start or no end")
    if start >= end:
        raise ValueError(f"{text!r} is empty, because its end is before its start")
    return start, end


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def micros_to_iso(micros: int) -> str:
    """Formats microseconds since 1970 as ISO 8601; values beyond the years 1 to 9999 are clamped."""
    return (_EPOCH + timedelta(microseconds=min(max(micros, EARLIEST_US), LATEST_US))).isoformat()
