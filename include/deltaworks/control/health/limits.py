"""Limits of health verdicts: thresholds, time left in the source, and the usual input by hour of the day.

The usual input of an hour is the median of its rows over the last days, so one lost or one extreme day does not change
it. A stream counts as silent if a full hour that usually has rows had none. Sources that send hourly, or only by day,
are therefore not reported. A source that sends irregularly is never reported unless it declares a limit.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from deltaworks.control.clock import parse_iso
from deltaworks.control.health.heartbeat import Heartbeat
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import StateRecord

HealthState = Literal["healthy", "lagging", "starting", "stopping", "stopped", "paused", "unhealthy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthLimits:
    """Thresholds in seconds beyond which a relay or stream is unhealthy.

    Args:
        retention_seconds: retention of the source, if it does not report one.
        time_left_seconds_min: minimum time until the oldest unread input expires; by default a quarter of the
            retention.
        no_input_seconds: maximum time without input; by default the usual input of the hour decides.
        quarantined_share_max: maximum share of quarantined events, among at least `quarantined_events_min` events; 1
            turns both shares off.
        quarantined_run_share: the same share for a run of minutes in the last hour, such as a rejected batch.
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
    quarantined_run_share: float = 0.25
    quarantined_events_min: int = 100

    def stale_seconds(self, trigger_seconds: float) -> float:
        """Returns the age from which a heartbeat shows that its writer hangs or has ended."""
        return max(self.stale_triggers * trigger_seconds, self.stale_seconds_min)


@dataclass(frozen=True, slots=True)
class Finding:
    """A health finding: state, cause (a code of `deltaworks.errors.conditions`), details and next step."""

    state: HealthState
    cause: str
    detail: str
    next_step: str = ""


def age_seconds(text: str | None, now: datetime) -> float:
    """Returns the seconds since an ISO 8601 time: 0 for a future time, infinity for None."""
    instant = parse_iso(text)
    return max(0.0, (now - instant).total_seconds()) if instant else float("inf")


def format_duration(seconds: float) -> str:
    """Formats seconds for people: `90 s`, `15 min`, `2.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def time_left_seconds(heartbeat: Heartbeat, limits: HealthLimits, now: datetime, *, is_dead: bool) -> float | None:
    """Returns the seconds until the source deletes its oldest unread input; None if there is no backlog or no known
    retention.

    Args:
        is_dead: the stream is not running, so input since its last heartbeat is unread too.
    """
    retention = heartbeat.retention_seconds or limits.retention_seconds
    oldest = heartbeat.oldest_pending_at or (heartbeat.written_at if is_dead else None)
    if retention is None or oldest is None:
        return None
    return retention - age_seconds(oldest, now)


def is_loss_near(left_seconds: float | None, heartbeat: Heartbeat, limits: HealthLimits) -> bool:
    """Whether the source will delete unread input so soon that a person must act."""
    retention = heartbeat.retention_seconds or limits.retention_seconds
    if left_seconds is None or retention is None:
        return False
    minimum_seconds = limits.time_left_seconds_min
    return left_seconds < (minimum_seconds if minimum_seconds is not None else retention / 4)


HOURS = 24
#: Input rates of fewer days are ignored.
MIN_DAYS = 7
MAX_DAYS = 28


class InputRate(StateRecord):
    """Median rows per hour of the day (UTC), and the number of days it is based on."""

    rows_by_hour: tuple[float, ...]
    days: int
    written_at: str
    format: Literal[1] = 1


def median_input_rate(rows_by_hour: Mapping[datetime, int], *, first_input_at: datetime, now: datetime) -> InputRate:
    """Computes the input rate over complete days.

    Args:
        rows_by_hour: rows by hour of arrival; hours without rows may be missing.
        first_input_at: time of the pipeline's first input; earlier days are not counted.
    """
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    begin = max(today - timedelta(days=MAX_DAYS), first_input_at)
    days = [day for days_ago in range(1, MAX_DAYS + 1) if (day := today - timedelta(days=days_ago)) >= begin]
    medians = (
        statistics.median([rows_by_hour.get(day + timedelta(hours=hour), 0) for day in days]) if days else 0.0
        for hour in range(HOURS)
    )
    return InputRate(rows_by_hour=tuple(map(float, medians)), days=len(days), written_at=now.isoformat())


def silent_hour(input_rate: InputRate | None, last_input: datetime, now: datetime) -> datetime | None:
    """Returns the first complete hour since the last input that usually has rows but had none, or None."""
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
    """Sums rows by hour of arrival."""
    totals: dict[datetime, int] = {}
    for at, rows in inputs:
        hour = at.replace(minute=0, second=0, microsecond=0)
        totals[hour] = totals.get(hour, 0) + rows
    return totals


def write_input_rate(objects: ObjectStore, key: str, input_rate: InputRate) -> None:
    """Stores the input rate."""
    objects.put(key, input_rate.encode())


def read_input_rate(objects: ObjectStore, key: str) -> InputRate | None:
    """Reads the stored input rate; None if it is missing or unreadable."""
    return InputRate.read_or_none(objects, key)
