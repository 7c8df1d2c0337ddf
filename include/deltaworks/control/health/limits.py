"""The bounds a verdict rests on, the time left in the source, and findings with their durations as text."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from deltaworks.control.clock import parse_iso
from deltaworks.control.health.heartbeat import Heartbeat

HealthState = Literal["healthy", "lagging", "starting", "stopping", "stopped", "paused", "unhealthy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthLimits:
    """The bounds beyond which a relay or a stream counts as unhealthy, in seconds.

    `retention_seconds` is for how long the source keeps records, where it does not say so itself; the oldest that waits
    must have `time_left_seconds_min` left, a quarter of the retention where none is declared. `no_input_seconds` may
    pass without input; where none is declared, the norm of the hour decides.
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

    def stale_seconds(self, trigger_seconds: float) -> float:
        """The age from which a heartbeat says that its writer hangs or is gone."""
        return max(self.stale_triggers * trigger_seconds, self.stale_seconds_min)


@dataclass(frozen=True, slots=True)
class Finding:
    """A state, its cause (a row of `deltaworks.control.troubles`, or a condition), what was seen and what to do."""

    state: HealthState
    cause: str
    detail: str
    next_step: str = ""


def age_seconds(text: str | None, now: datetime) -> float:
    """Seconds since an ISO 8601 time: 0 for one in the future, infinity for none."""
    instant = parse_iso(text)
    return max(0.0, (now - instant).total_seconds()) if instant else float("inf")


def duration(seconds: float) -> str:
    """Seconds as text for people: `90 s`, `15 min`, `2.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def time_left_seconds(heartbeat: Heartbeat, limits: HealthLimits, now: datetime, *, dead: bool) -> float | None:
    """Seconds until the source deletes the oldest that waits; None where nothing waits or its retention is unknown.

    Args:
        dead: the stream does not run. Then whatever has come since its last heartbeat waits too.
    """
    retention = heartbeat.retention_seconds or limits.retention_seconds
    oldest = heartbeat.oldest_pending_at or (heartbeat.written_at if dead else None)
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
