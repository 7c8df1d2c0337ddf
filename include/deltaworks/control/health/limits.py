"""What judging health rests on: how long what may last, what was found, and how times are said."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from deltaworks.control.clock import parse_iso

State = Literal["healthy", "lagging", "starting", "stopping", "stopped", "paused", "unhealthy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthLimits:
    """How long what may last before it counts as unhealthy. Seconds throughout.

    `retention_seconds` is what the source keeps, where it does not say so itself; what waits must have
    `time_left_seconds_min` left, a quarter of the retention where none is declared. `no_input_seconds` may pass without
    input; where none is declared, what is usual decides.
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
    """A state, its cause, what was seen and what to do."""

    state: State
    cause: str
    detail: str
    next_step: str = ""


def age_seconds(text: str | None, now: datetime) -> float:
    """Seconds since then; a clock that is ahead of ours counts as now."""
    instant = parse_iso(text)
    return max(0.0, (now - instant).total_seconds()) if instant else float("inf")


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
