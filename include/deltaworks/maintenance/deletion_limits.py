"""Limits on the amount of data that nightly maintenance may delete.

The first night on an existing lake is a dry run, so that an operator can review the planned deletions. The time of the
first night is stored in the lake, so restarts, retries and other tasks use the same one. If all tables of a lake are
young, its first night deletes.

Later nights delete at most a share of a table (`maintenance.max_removed_share`). A larger deletion is skipped and
raises an alert. Small amounts are always allowed.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import StrictBool

from deltaworks.alerts.raising import raise_alert, resolve_alert
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.store import Instant, StateRecord
from deltaworks.errors import ContractError, DeltaworksError
from deltaworks.tables.lake import Lake

log = logging.getLogger(__name__)
FIRST_NIGHT_DRY_RUN, LIMIT_EXCEEDED = "MAINTENANCE_DRY_RUN", "MAINTENANCE_LIMIT_EXCEEDED"
#: Duration of the first night: longer than a maintenance run, shorter than the time until the next one.
FIRST_NIGHT_HOURS = 18
#: Maximum age of all tables of a new lake, which has nothing old to delete.
NEW_LAKE_AGE = dt.timedelta(days=7)
#: Amounts that a night may always delete, regardless of the share.
UNLIMITED_BYTES = 256 << 20
UNLIMITED_ROWS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionLimit:
    """The largest share (0 to 1) of a table that one night may remove; 1 means no limit."""

    share: float

    def max_rows(self, total: int) -> int:
        """Returns the maximum number of rows that may be removed from a table with this many rows."""
        return max(UNLIMITED_ROWS, int(total * self.share)) if self.share < 1 else total

    def max_bytes(self, total: int) -> int:
        """Returns the maximum number of bytes that may be removed from a table of this size."""
        return max(UNLIMITED_BYTES, int(total * self.share)) if self.share < 1 else total


class _FirstRun(StateRecord):
    """The time of the first maintenance run, and whether all tables were young then."""

    at: Instant
    new: StrictBool


def first_night_reason(
    lake: Lake, home: PipelineHome, tables: Sequence[str], *, alert: bool = True, now: dt.datetime | None = None
) -> str:
    """Returns why this night is a dry run; empty if it may delete. Idempotent; safe for several processes.

    The first call decides by the age of the pipeline's tables and records the decision.

    Args:
        tables: all tables of the pipeline.
        alert: raise an alert, which the first night that deletes resolves.
    """
    now = now or utc_now()
    key = paths.first_maintenance(home.pipeline)
    if home.objects.get(key) is None:
        first = _FirstRun(at=now, new=_is_new_lake(lake, home, tables, now=now))
        home.objects.put_if_absent(key, first.encode())
    first_run = _FirstRun.read_or_none(home.objects, key)
    if first_run is None:
        # The record is damaged: treat this as the first night.
        first_run = _FirstRun(at=now, new=False)
        home.objects.put(key, first_run.encode())
    deletes_from = first_run.at + dt.timedelta(hours=FIRST_NIGHT_HOURS)
    if first_run.new or now >= deletes_from:
        _log_failures(lambda: resolve_alert(home.objects, cause=FIRST_NIGHT_DRY_RUN, subject=home.pipeline))
        return ""
    reason = (
        f"the first night on an existing lake is a dry run; nights from {deletes_from:%Y-%m-%d %H:%M} UTC on "
        "delete files"
    )
    if not alert:
        return reason
    _log_failures(
        lambda: raise_alert(
            home.objects,
            cause=FIRST_NIGHT_DRY_RUN,
            subject=home.pipeline,
            summary=f"{home.pipeline}: {reason}. Review the results of the run's tasks. To keep dry runs, declare "
            "maintenance: {vacuum_dry_run: true}.",
            now=now,
        )
    )
    return reason


def alert_limit_exceeded(home: PipelineHome, target: str, *, summary: str, command: str) -> None:
    """Raises the alert for a deletion that exceeds the limit. Maintenance continues."""
    subject = f"{home.pipeline}.{target}"
    _log_failures(
        lambda: raise_alert(
            home.objects,
            cause=LIMIT_EXCEEDED,
            subject=subject,
            summary=f"{subject}: {summary} Review it, then run: {command}",
        )
    )


def resolve_limit_exceeded(home: PipelineHome, target: str) -> None:
    """Resolves the alert for a deletion that exceeded the limit."""
    subject = f"{home.pipeline}.{target}"
    _log_failures(
        lambda: resolve_alert(
            home.objects, cause=LIMIT_EXCEEDED, subject=subject, summary=("the deletion is within the limit")
        )
    )


def _is_new_lake(lake: Lake, home: PipelineHome, tables: Sequence[str], *, now: dt.datetime) -> bool:
    for name in tables:
        try:
            opened = lake.open(home.table(name))
        except ContractError:
            return False  # its age is unknown
        created = opened.metadata().created_time if opened is not None else None
        if opened is not None and (created is None or now.timestamp() - created / 1000 > NEW_LAKE_AGE.total_seconds()):
            return False
    return True


def _log_failures(change: Callable[[], object]) -> None:
    """Logs errors of alerts within a block, so that maintenance continues."""
    try:
        change()
    except DeltaworksError as error:
        log.warning("An alert could not be raised or resolved: %s", error)
