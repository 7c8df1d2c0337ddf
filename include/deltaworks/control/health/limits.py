"""The bounds a verdict rests on: limits, the time left in the source, and the usual input by hour of the day.

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
from typing import Literal

from deltaworks.control.clock import parse_iso
from deltaworks.control.health.heartbeat import Heartbeat
from deltaworks.control.objects import ObjectStore

HealthState = Literal["healthy", "lagging", "starting", "stopping", "stopped", "paused", "unhealthy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthLimits:
    """The bounds beyond which a relay or a stream counts as unhealthy, in seconds.

    `retention_seconds` is for how long the source keeps records, where it does not say so itself; the oldest that waits
    must have `time_left_seconds_min` left, a quarter of the retention where none is declared. `no_input_seconds` may
    pass without input; where none is declared, the norm of the hour decides. Of `quarantined_events_min` events or more
    the share in quarantine may be `quarantined_share_max`.
    """

    stale_triggers: float = 3
    stale_seconds_min: float = 120
    grace_seconds: float = 180
    starting_seconds_max: float = 600
    stall_seconds: float = 900
    lag_seconds: float = 300
    backlog_seconds_max: float = 3600
    retention_seconds: float | None = None
    time_left_seconds_min: float | None = None
    no_input_seconds: float | None = None
    quarantined_share_max: float = 0.05
    quarantined_events_min: int = 100

    def stale_seconds(self, trigger_seconds: float) -> float:
        """The age from which a heartbeat says that its writer hangs or is gone."""
        return max(self.stale_triggers * trigger_seconds, self.stale_seconds_min)


@dataclass(frozen=True, slots=True)
class Finding:
    """A state, its cause (a row of `deltaworks.control.conditions`, or a condition), what was seen and what to do."""

    state: HealthState
    cause: str
    detail: str
    next_step: str = ""


def age_seconds(text: str | None, now: datetime) -> float:
    """Seconds since an ISO 8601 time: 0 for one in the future, infinity for none."""
    instant = parse_iso(text)
    return max(0.0, (now - instant).total_seconds()) if instant else float("inf")


def format_duration(seconds: float) -> str:
    """Seconds as text for people: `90 s`, `15 min`, `2.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def time_left_seconds(heartbeat: Heartbeat, limits: HealthLimits, now: datetime, *, is_dead: bool) -> float | None:
    """Seconds until the source deletes the oldest that waits; None where nothing waits or its retention is unknown.

    Args:
        dead: the stream does not run. Then whatever has come since its last heartbeat waits too.
    """
    retention = heartbeat.retention_seconds or limits.retention_seconds
    oldest = heartbeat.oldest_pending_at or (heartbeat.written_at if is_dead else None)
    if retention is None or oldest is None:
        return None
    return retention - age_seconds(oldest, now)


def is_loss_near(left_seconds: float | None, heartbeat: Heartbeat, limits: HealthLimits) -> bool:
    """Whether so little time is left that someone has to act."""
    retention = heartbeat.retention_seconds or limits.retention_seconds
    if left_seconds is None or retention is None:
        return False
    least = limits.time_left_seconds_min
    return left_seconds < (least if least is not None else retention / 4)


FORMAT = 1
HOURS = 24
#: A norm of fewer days is not used.
MIN_DAYS = 7
MAX_DAYS = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRate:
    """The median of rows per hour of the day, in UTC, and the number of days it was computed from."""

    rows_by_hour: tuple[float, ...]
    days: int
    written_at: str
    format: int = FORMAT


def median_input_rate(rows_by_hour: Mapping[datetime, int], *, first_input_at: datetime, now: datetime) -> InputRate:
    """The norm of whole days.

    Args:
        rows_by_hour: rows by the hour they came in; hours without rows may be left out.
        first: when the pipeline first had input; days before it are not counted.
    """
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    begin = max(today - timedelta(days=MAX_DAYS), first_input_at)
    days = [day for back in range(1, MAX_DAYS + 1) if (day := today - timedelta(days=back)) >= begin]
    medians = (
        statistics.median([rows_by_hour.get(day + timedelta(hours=hour), 0) for day in days]) if days else 0.0
        for hour in range(HOURS)
    )
    return InputRate(rows_by_hour=tuple(map(float, medians)), days=len(days), written_at=now.isoformat())


def silent_hour(input_rate: InputRate | None, last_input: datetime, now: datetime) -> datetime | None:
    """The first whole hour since the last input that usually brings rows and has brought none."""
    if input_rate is None or input_rate.days < MIN_DAYS or len(input_rate.rows_by_hour) != HOURS:
        return None
    hour = last_input.replace(minute=0, second=0, microsecond=0)
    hour += timedelta(hours=1)
    for _ in range(HOURS):
        if hour + timedelta(hours=1) > now:
            return None
        if input_rate.rows_by_hour[hour.hour] > 0:
            return hour
        hour += timedelta(hours=1)
    return None


def sum_by_hour(inputs: Iterable[tuple[datetime, int]]) -> dict[datetime, int]:
    """Rows by the hour they came in."""
    totals: dict[datetime, int] = {}
    for at, rows in inputs:
        hour = at.replace(minute=0, second=0, microsecond=0)
        totals[hour] = totals.get(hour, 0) + rows
    return totals


def write_input_rate(objects: ObjectStore, key: str, input_rate: InputRate) -> None:
    """Store the norm."""
    objects.put(key, json.dumps(asdict(input_rate)).encode())


def read_input_rate(objects: ObjectStore, key: str) -> InputRate | None:
    """The stored norm; None where there is none that can be read."""
    item = objects.get(key)
    try:
        record = json.loads(item.data) if item else None
        if record is None or record["format"] != FORMAT:
            return None
        fields = {name: record[name] for name in InputRate.__slots__ if name in record}
        return InputRate(**{**fields, "rows_by_hour": tuple(record["rows_by_hour"])})
    except (ValueError, KeyError, TypeError):
        return None
