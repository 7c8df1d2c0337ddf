"""How much time is left until a source forgets what a stream has not read. Pure arithmetic on its heartbeat."""

from __future__ import annotations

from datetime import datetime

from deltaworks.control.health.heartbeat import Heartbeat
from deltaworks.control.health.limits import HealthLimits, age_seconds


def time_left_seconds(heartbeat: Heartbeat, limits: HealthLimits, now: datetime, *, gone: bool) -> float | None:
    """Seconds until the oldest that waits is deleted by the source; None where nothing waits, or nothing is known of
    what the source keeps.

    Args:
        gone: it does not run. Then whatever has come since its last heartbeat waits too, seen by nobody.
    """
    retention = heartbeat.retention_seconds or limits.retention_seconds
    oldest = heartbeat.oldest_pending_at or (heartbeat.written_at if gone else None)
    if retention is None or oldest is None:
        return None
    return retention - age_seconds(oldest, now)


def is_near(left: float | None, heartbeat: Heartbeat, limits: HealthLimits) -> bool:
    """Whether so little is left that somebody has to act."""
    retention = heartbeat.retention_seconds or limits.retention_seconds
    if left is None or retention is None:
        return False
    least = limits.time_left_seconds_min
    return left < (least if least is not None else retention / 4)
