"""The usual input of a stream by hour of the day, and whether a silence is longer than usual.

The norm of an hour is the median, over the days looked at, of the rows that came in within it: one lost or one extreme
day does not move it. A stream is silent where a whole hour of the clock that usually brings rows has brought none. So
a source that sends once an hour, or only by day, is not taken for dead; one that sends irregularly is never called
silent, and declares a bound if it should be.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from deltaworks.control.objects import ObjectStore

FORMAT = 1
HOURS = 24
#: A norm of fewer days is not used.
FEWEST_DAYS = 7
DAYS = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class InputNorm:
    """The median of rows per hour of the day, in UTC, and the number of days it was computed from."""

    rows_by_hour: tuple[float, ...]
    days: int
    written_at: str
    format: int = FORMAT


def norm_of(rows_by_hour: Mapping[datetime, int], *, first: datetime, now: datetime) -> InputNorm:
    """The norm of whole days.

    Args:
        rows_by_hour: rows by the hour they came in; hours without rows may be left out.
        first: when the pipeline first had input; days before it are not counted.
    """
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    begin = max(today - timedelta(days=DAYS), first)
    days = [day for back in range(1, DAYS + 1) if (day := today - timedelta(days=back)) >= begin]
    medians = (
        statistics.median([rows_by_hour.get(day + timedelta(hours=hour), 0) for day in days]) if days else 0.0
        for hour in range(HOURS)
    )
    return InputNorm(rows_by_hour=tuple(map(float, medians)), days=len(days), written_at=now.isoformat())


def silent_hour(norm: InputNorm | None, last_input: datetime, now: datetime) -> datetime | None:
    """The first whole hour since the last input that usually brings rows and has brought none."""
    if norm is None or norm.days < FEWEST_DAYS or len(norm.rows_by_hour) != HOURS:
        return None
    hour = last_input.replace(minute=0, second=0, microsecond=0)
    hour += timedelta(hours=1)
    for _ in range(HOURS):
        if hour + timedelta(hours=1) > now:
            return None
        if norm.rows_by_hour[hour.hour] > 0:
            return hour
        hour += timedelta(hours=1)
    return None


def by_hour(inputs: Iterable[tuple[datetime, int]]) -> dict[datetime, int]:
    """Rows by the hour they came in."""
    totals: dict[datetime, int] = {}
    for at, rows in inputs:
        hour = at.replace(minute=0, second=0, microsecond=0)
        totals[hour] = totals.get(hour, 0) + rows
    return totals


def write_norm(objects: ObjectStore, key: str, norm: InputNorm) -> None:
    """Store the norm."""
    objects.put(key, json.dumps(asdict(norm)).encode())


def read_norm(objects: ObjectStore, key: str) -> InputNorm | None:
    """The stored norm; None where there is none that can be read."""
    item = objects.get(key)
    try:
        record = json.loads(item.data) if item else None
        if record is None or record["format"] != FORMAT:
            return None
        fields = {name: record[name] for name in InputNorm.__slots__ if name in record}
        return InputNorm(**{**fields, "rows_by_hour": tuple(record["rows_by_hour"])})
    except (ValueError, KeyError, TypeError):
        return None
