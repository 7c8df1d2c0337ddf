"""Retention window of a live table of kind `latest`, and the expiry of older rows.

The window starts `expire_after_minutes` before the newest event, or before now if that event is in the future. So a
silent source expires nothing, recorded data can be processed, and one wrong clock does not expire all rows. The window
depends on rows only: drivers that have read the same rows have the same window.

A row before the window is never the latest of a key with a younger row, because `event_time` is compared first. So
dropping old rows does not change results for younger ones.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties
from deltalake.exceptions import CommitFailedError

from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.tables.commit import (
    Step,
    check_owner_epoch,
    commit_attempts,
    contention_error,
    post_commit_properties,
    refresh,
)
from deltaworks.tables.log import Action, stats_of

EVENT_TIME = "event_time"
#: File statistics are rounded down to milliseconds.
_STATISTICS_PRECISION = dt.timedelta(milliseconds=1)
#: Old rows are deleted every tenth of the retention, at least this many seconds apart.
MIN_EXPIRY_SECONDS = 30.0
EXPIRY_FRACTION = 0.1
#: Number of files at which they are compacted.
MAX_FILES = 32


class RetentionWindow:
    """The start of the event times that a table keeps. Without a limit, all rows are kept."""

    def __init__(self, expire_after_minutes: int | None, *, now: Callable[[], dt.datetime] = utc_now) -> None:
        self._span = None if expire_after_minutes is None else dt.timedelta(minutes=expire_after_minutes)
        self._now = now
        self._newest: dt.datetime | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether rows expire at all."""
        return self._span is not None

    @property
    def start(self) -> dt.datetime | None:
        """Rows with an earlier event time are dropped; None keeps all."""
        if self._span is None or self._newest is None:
            return None
        return min(self._newest, self._now()) - self._span

    def reset(self) -> None:
        """Forgets the newest event time before the rows are read again."""
        self._newest = None

    def observe(self, times: pa.ChunkedArray) -> None:
        """Updates the newest event time from rows."""
        if self._span is not None:
            self._observe(pc.max(times).as_py())

    def observe_files(self, files: Iterable[Action]) -> None:
        """Updates the newest event time from file statistics."""
        for file in files if self._span is not None else ():
            self._observe(_event_time_bound(file, "maxValues"))

    def filter_rows(self, rows: pa.Table) -> pa.Table:
        """Observes the rows and returns those within the window."""
        if self._span is None or not rows.num_rows:
            return rows
        self.observe(rows.column(EVENT_TIME))
        start = self.start
        return rows if start is None else rows.filter(pc.greater_equal(rows.column(EVENT_TIME), pa.scalar(start)))

    def filter_files(self, files: Iterable[Action]) -> tuple[Action, ...]:
        """Returns the files that may have rows within the window."""
        start = self.start
        if start is None:
            return tuple(files)
        ends = ((file, _event_time_bound(file, "maxValues")) for file in files)
        return tuple(file for file, end in ends if end is None or end + _STATISTICS_PRECISION >= start)

    def _observe(self, newest: dt.datetime | None) -> None:
        if newest is not None and (self._newest is None or newest > self._newest):
            self._newest = newest


def _event_time_bound(file: Action, side: str) -> dt.datetime | None:
    value = (stats_of(file).get(side) or {}).get(EVENT_TIME)
    try:
        return parse_iso(value) if isinstance(value, str) else None
    except ValueError:
        return None


class Expiry:
    """Deletes rows before the retention window periodically, and compacts small files.

    Each is a commit guarded by the owner epoch. Used by the merging thread.
    """

    def __init__(self, window: RetentionWindow, owner: Step, *, expire_after_minutes: int | None) -> None:
        self._window = window
        self._owner = owner
        self._seconds_between = max(MIN_EXPIRY_SECONDS, (expire_after_minutes or 0) * 60 * EXPIRY_FRACTION)
        self._last_expiry: float | None = None

    def run_if_due(self, table: DeltaTable, user_metadata: str) -> None:
        """Deletes and compacts if due. Cheap otherwise.

        Raises:
            FencedError: a successor has taken over.
            ConcurrencyError: COMMIT_CONTENDED after `commit_attempts`.
        """
        if not self._window.is_bounded:
            return
        if self._last_expiry is None or time.monotonic() - self._last_expiry >= self._seconds_between:
            self.expire(table, user_metadata)
            self._last_expiry = time.monotonic()
        if len(table.file_uris()) >= MAX_FILES:
            self._compact(table, user_metadata)

    def expire(self, table: DeltaTable, user_metadata: str) -> None:
        """Deletes all rows before the retention window; commits nothing if there are none.

        Raises:
            FencedError: a successor has taken over.
            ConcurrencyError: COMMIT_CONTENDED after `commit_attempts`.
        """
        start = self._window.start
        if start is None:
            return
        for _ in commit_attempts():
            refresh(table)
            check_owner_epoch(table, self._owner)
            if not _may_contain_before(table, start):
                return
            try:
                table.delete(
                    # Cast to the column's exact type, because DataFusion compares equal types only.
                    f"{EVENT_TIME} < arrow_cast('{start.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')",
                    writer_properties=WriterProperties(compression="ZSTD", compression_level=1),
                    commit_properties=self._commit_properties(user_metadata),
                    post_commithook_properties=post_commit_properties(table),
                )
            except CommitFailedError:
                continue
            return
        raise contention_error(table.table_uri, "delete old rows", advice="resume the table")

    def _compact(self, table: DeltaTable, user_metadata: str) -> None:
        for _ in commit_attempts():
            refresh(table)
            check_owner_epoch(table, self._owner)
            if len(table.file_uris()) < MAX_FILES:
                return
            try:
                table.optimize.compact(
                    writer_properties=WriterProperties(compression="ZSTD", compression_level=1),
                    commit_properties=self._commit_properties(user_metadata),
                    post_commithook_properties=post_commit_properties(table),
                )
            except CommitFailedError:
                continue
            return
        raise contention_error(table.table_uri, "compact small files", advice="resume the table")

    def _commit_properties(self, user_metadata: str) -> CommitProperties:
        return CommitProperties(
            custom_metadata={"userMetadata": user_metadata},
            max_commit_retries=0,
            app_transactions=[Transaction(self._owner.app_id, self._owner.version)],
        )


def _may_contain_before(table: DeltaTable, start: dt.datetime) -> bool:
    """Returns whether a file may have rows with an earlier event time. Reads the open table's log only."""
    files = pa.table(table.get_add_actions(flatten=True))
    if f"min.{EVENT_TIME}" not in files.column_names:
        return bool(files.num_rows)
    bounds = files.column(f"min.{EVENT_TIME}").to_pylist()
    return any(bound is None or _in_utc(bound) < start for bound in bounds)


def _in_utc(bound: dt.datetime) -> dt.datetime:
    return bound if bound.tzinfo else bound.replace(tzinfo=dt.UTC)
