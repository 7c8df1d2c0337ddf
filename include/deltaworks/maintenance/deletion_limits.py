"""What a night may delete with nobody watching.

The first night on a lake that was there before only counts: whoever sets up a new release sees what it would delete
before anything goes. A record in the lake says when that was, so that a restart, another task of the same run and a
retry see the same. On a lake whose tables are all young nothing can be missed, and it deletes from the beginning.

From then on a night removes no more than a share of what a table holds (`maintenance.max_removed_share`): what needs
more stops there and raises an alert, and a person looks. Small amounts are not bounded: a bound that holds back trifles
is one that people switch off.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deltaworks.alerts.raising import raise_alert, resolve_alert
from deltaworks.control import paths
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.errors import DeltaworksError
from deltaworks.tables.lake import Lake

log = logging.getLogger(__name__)
FIRST_NIGHT_DRY_RUN, LIMIT_EXCEEDED = "MAINTENANCE_DRY_RUN", "MAINTENANCE_LIMIT_EXCEEDED"
#: A night takes less, and the next one begins later.
FIRST_NIGHT_HOURS = 18
#: A lake whose oldest table is younger has nothing that a night would delete.
NEW_LAKE_AGE = dt.timedelta(days=7)
#: Up to so much is removed whatever its share is.
UNLIMITED_BYTES = 256 << 20
UNLIMITED_ROWS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionLimit:
    """The largest share (0 to 1) of a table that a night may remove; 1 is no bound."""

    share: float

    def max_rows(self, total: int) -> int:
        """The most rows of so many."""
        return max(UNLIMITED_ROWS, int(total * self.share)) if self.share < 1 else total

    def max_bytes(self, total: int) -> int:
        """The most bytes of so many."""
        return max(UNLIMITED_BYTES, int(total * self.share)) if self.share < 1 else total


@dataclass(frozen=True, slots=True, kw_only=True)
class _FirstRun:
    """When maintenance first came by, and whether the tables were new then."""

    at: dt.datetime
    is_new_lake: bool

    def encode(self) -> bytes:
        return json.dumps({"at": self.at.isoformat(), "new": self.is_new_lake}).encode()

    @classmethod
    def decode(cls, data: bytes) -> _FirstRun | None:
        """The record; None where it is torn."""
        try:
            record = json.loads(data)
            at, new = parse_iso(record["at"]), record["new"]
        except (ValueError, KeyError, TypeError):
            return None
        return cls(at=at, is_new_lake=new) if at is not None and isinstance(new, bool) else None


def first_night_reason(
    lake: Lake, home: PipelineHome, tables: Sequence[str], *, alert: bool = True, now: dt.datetime | None = None
) -> str:
    """Why a night only counts, as a sentence; empty where it may delete. Idempotent, and safe from several processes.

    The first call decides by the age of the pipeline's tables, and keeps that. A night that only counts by declaration
    is one that people could see.

    Args:
        tables: every table of the pipeline.
        alert: people are told by an alert, which the first night that deletes resolves.
    """
    now = now or utc_now()
    key = paths.first_maintenance(home.pipeline)
    stored = home.objects.get(key)
    if stored is None:
        first = _FirstRun(at=now, is_new_lake=_is_new_lake(lake, home, tables, now=now))
        home.objects.put_if_absent(key, first.encode())
        stored = home.objects.get(key)
    first_run = _FirstRun.decode(stored.data if stored is not None else b"")
    if first_run is None:
        # Nobody knows whether anybody has seen what would go: it is as if this were the first night.
        first_run = _FirstRun(at=now, is_new_lake=False)
        home.objects.put(key, first_run.encode())
    deletes_from = first_run.at + dt.timedelta(hours=FIRST_NIGHT_HOURS)
    if first_run.is_new_lake or now >= deletes_from:
        _log_failures(lambda: resolve_alert(home.objects, cause=FIRST_NIGHT_DRY_RUN, subject=home.pipeline))
        return ""
    reason = (
        "the first night on a lake that was there before only counts; "
        f"nights from {deletes_from:%Y-%m-%d %H:%M} UTC on delete"
    )
    if not alert:
        return reason
    _log_failures(
        lambda: raise_alert(
            home.objects,
            cause=FIRST_NIGHT_DRY_RUN,
            subject=home.pipeline,
            summary=f"{home.pipeline}: {reason}. The results of the run's tasks say what. To go on counting, declare "
            "maintenance: {vacuum_dry_run: true}.",
            now=now,
        )
    )
    return reason


def alert_limit_exceeded(home: PipelineHome, target: str, *, summary: str, command: str) -> None:
    """Raise the alert of what a night leaves to a person. It never keeps the night from going on."""
    subject = f"{home.pipeline}.{target}"
    _log_failures(
        lambda: raise_alert(
            home.objects,
            cause=LIMIT_EXCEEDED,
            subject=subject,
            summary=f"{subject}: {summary} Look at it, then: {command}",
        )
    )


def resolve_limit_exceeded(home: PipelineHome, target: str) -> None:
    """Resolve it. Without an open alert nothing happens."""
    subject = f"{home.pipeline}.{target}"
    _log_failures(
        lambda: resolve_alert(home.objects, cause=LIMIT_EXCEEDED, subject=subject, summary="it is within the bound")
    )


def _is_new_lake(lake: Lake, home: PipelineHome, tables: Sequence[str], *, now: dt.datetime) -> bool:
    for name in tables:
        opened = lake.open(home.table(name))
        created = opened.metadata().created_time if opened is not None else None
        if opened is not None and (created is None or now.timestamp() - created / 1000 > NEW_LAKE_AGE.total_seconds()):
            return False
    return True


def _log_failures(change: Callable[[], object]) -> None:
    """An alert that cannot be raised or resolved never changes what maintenance does."""
    try:
        change()
    except DeltaworksError as error:
        log.warning("An alert could not be raised or resolved: %s", error)
