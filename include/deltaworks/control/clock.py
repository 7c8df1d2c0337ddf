"""The wall clock, in UTC, as it is written into records. Durations use `time.monotonic()` instead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
#: The instants a datetime can name, in microseconds since 1970: those of the years 1 to 9999.
EARLIEST_US = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
LATEST_US = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND


def utc_now() -> datetime:
    """Now, aware, in UTC."""
    return datetime.now(UTC)


def iso_now() -> str:
    """Now as ISO 8601 with milliseconds."""
    return utc_now().isoformat(timespec="milliseconds")


def parse_iso(text: str | None) -> datetime | None:
    """The instant an ISO 8601 text names; naive texts are read as UTC."""
    if not text:
        return None
    instant = datetime.fromisoformat(text)
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def micros_to_iso(micros: int) -> str:
    """Microseconds since 1970 as ISO 8601; outside the years 1 to 9999 their first or last instant."""
    return (_EPOCH + timedelta(microseconds=min(max(micros, EARLIEST_US), LATEST_US))).isoformat()
