"""Computes how long a table's files are kept after newer versions no longer need them: the longest of all demands.

The log remembers a removed file for the time of a table property and no longer. After that VACUUM treats the file as
one that no commit ever named, and goes by its age. So a table whose files must be kept for longer than its log
remembers is skipped altogether.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from deltaworks.errors import ConfigError
from deltaworks.maintenance.vacuum_holds import Hold

MINIMUM_RETENTION_HOURS = 168
#: No job takes longer from the version it reads, or from its first file, to its commit.
LEAST_RETENTION_HOURS = 24
#: Clocks of writers and of storage differ, and VACUUM reads them some time after the retention was computed.
MARGIN_HOURS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The hours that a table's removed files are kept, and why; `skipped` where it must not be vacuumed."""

    hours: int
    why: str = ""
    skipped: bool = False


def check_retention(hours: int, *, below_minimum: str = "") -> None:
    """Refuse a retention that is too short.

    Args:
        below_minimum: the reason for a retention below MINIMUM_RETENTION_HOURS; without one it is refused.

    Raises:
        ConfigError: VACUUM_RETENTION_TOO_SHORT.
    """
    if hours >= MINIMUM_RETENTION_HOURS or (below_minimum.strip() and hours >= LEAST_RETENTION_HOURS):
        return
    if below_minimum.strip():
        hint = f"Use {LEAST_RETENTION_HOURS} h or more: a job may run for as long as that before it commits."
    else:
        hint = (
            f"Use {MINIMUM_RETENTION_HOURS} h or more. For less, trigger vacuum_tables__<pipeline> with "
            "retention_hours and allow_below_minimum: a person approves before it deletes."
        )
    raise ConfigError(
        "VACUUM_RETENTION_TOO_SHORT",
        f"A retention of {hours} h would delete files that running jobs, streams and readers still need.",
        hint=hint,
    )


def retention_of(
    configured_hours: int, *, promised_hours: int, log_hours: int, holds: Sequence[Hold], now: datetime
) -> Retention:
    """The retention of one table. Pure.

    Args:
        configured_hours: the retention of the pipeline or of this run.
        promised_hours: time travel that the pipeline declares.
        log_hours: how long the table's log remembers removed files.
        holds: readers and writers, with the time since which each needs the table's files.
    """
    hours, why = configured_hours, ""
    if promised_hours > hours:
        hours, why = promised_hours, f"time travel of {promised_hours} h is promised"
    for hold in holds:
        if hold.since is None:
            reason = f"left out: {hold.by} stands at a version whose commit is not in the log any more"
            return Retention(hours=hours, why=reason, skipped=True)
        needed = math.ceil((now - hold.since).total_seconds() / 3600) + MARGIN_HOURS
        if needed > hours:
            hours, why = needed, f"{hold.by} needs what the table was at {hold.since:%Y-%m-%d %H:%M}"
    if hours > log_hours:
        reason = f"left out: {why or f'{hours} h are to be kept'}, and its log remembers {log_hours} h"
        return Retention(hours=hours, why=f"{reason} (delta.deletedFileRetentionDuration)", skipped=True)
    return Retention(hours=hours, why=f"kept for {hours} h: {why}" if why else "")
