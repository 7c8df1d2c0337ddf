"""Wall-clock time in UTC for records. Durations use `time.monotonic()` instead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

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


def micros_to_iso(micros: int) -> str:
    """Formats microseconds since 1970 as ISO 8601; values beyond the years 1 to 9999 are clamped."""
    return (_EPOCH + timedelta(microseconds=min(max(micros, EARLIEST_US), LATEST_US))).isoformat()
