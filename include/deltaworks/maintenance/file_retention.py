"""For how long files of a table are kept after newer versions have done without them: the longest that anybody needs.

A file that a commit removed is remembered by the table's log for the time its property says, and no longer: after
that, VACUUM takes it for one that nobody ever named, and goes by its age. So what has to be kept for longer than the
log remembers cannot be told apart from the rest, and such a table is left out altogether.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from deltaworks.errors import ConfigError
from deltaworks.maintenance.vacuum_holds import Hold

MINIMUM_RETENTION_HOURS = 168
#: No job of ours takes longer from the version it reads, or from its first file, to its commit.
LEAST_RETENTION_HOURS = 24
#: Clocks of writers and of storage differ, and VACUUM looks at them some time after it was decided.
MARGIN_HOURS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How many hours a table's removed files are kept, and why so many; `left_out` where it must not be vacuumed."""

    hours: int
    why: str = ""
    left_out: bool = False


def check_asked(hours: int, *, below_minimum: str = "") -> None:
    """Refuse a retention that is too short.

    Args:
        below_minimum: why less than MINIMUM_RETENTION_HOURS is to be kept, in words; without it that is refused.

    Raises:
        ConfigError: VACUUM_RETENTION_TOO_SHORT.
    """
    if hours >= MINIMUM_RETENTION_HOURS or (below_minimum.strip() and hours >= LEAST_RETENTION_HOURS):
        return
    if below_minimum.strip():
        hint = f"Use {LEAST_RETENTION_HOURS} h or more: a job may run for as long as that before it commits."
    else:
        hint = (
            f"Use {MINIMUM_RETENTION_HOURS} h or more. For less, trigger the maintenance DAG with "
            "vacuum_hours and vacuum_reason: it asks a person before it deletes."
        )
    raise ConfigError(
        "VACUUM_RETENTION_TOO_SHORT",
        f"A retention of {hours} h would delete files that running jobs, streams and readers still need.",
        hint=hint,
    )


def retention_of(
    asked_hours: int, *, promised_hours: int, log_hours: int, holds: Sequence[Hold], now: datetime
) -> Retention:
    """The retention of one table. Pure.

    Args:
        promised_hours: time travel that the pipeline declares.
        log_hours: for how long the table's log remembers what was removed.
        holds: readers and writers, and since when each needs what the table was.
    """
    hours, why = asked_hours, ""
    if promised_hours > hours:
        hours, why = promised_hours, f"time travel of {promised_hours} h is promised"
    for hold in holds:
        if hold.since is None:
            reason = f"left out: {hold.by} stands at a version whose commit is not in the log any more"
            return Retention(hours=hours, why=reason, left_out=True)
        needed = math.ceil((now - hold.since).total_seconds() / 3600) + MARGIN_HOURS
        if needed > hours:
            hours, why = needed, f"{hold.by} needs what the table was at {hold.since:%Y-%m-%d %H:%M}"
    if hours > log_hours:
        reason = f"left out: {why or f'{hours} h are to be kept'}, and its log remembers {log_hours} h"
        return Retention(hours=hours, why=f"{reason} (delta.deletedFileRetentionDuration)", left_out=True)
    return Retention(hours=hours, why=f"kept for {hours} h: {why}" if why else "")
