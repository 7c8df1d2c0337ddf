"""Shifts the clock that VACUUM uses in this process, so that files removed a minute ago exceed the minimum
retention."""

from __future__ import annotations

import time
from datetime import timedelta
from types import SimpleNamespace

from deltaworks.control import clock
from deltaworks.maintenance import vacuum


def advance_vacuum_clock(*, kept_hours: float, retention_seconds: float) -> timedelta:
    """Advances the clock that VACUUM sees by the minimum retention less `retention_seconds`. Other code sees the real
    time.
    """
    ahead = timedelta(hours=kept_hours) - timedelta(seconds=retention_seconds)
    true_now, true_time = clock.utc_now, time.time
    vacuum.utc_now = lambda: true_now() + ahead
    # What waits to be committed came on this day: a day of theirs is so many seconds of ours here too.
    safe = ahead + timedelta(seconds=retention_seconds / 2)
    vacuum._max_pending_age = lambda hours: safe
    vacuum.time = SimpleNamespace(  # type: ignore[assignment]
        time=lambda: true_time() + ahead.total_seconds(), monotonic=time.monotonic
    )
    return ahead
