"""Retention window of a live table of kind `latest`, and the deletion of expired rows.

The window ends at the newest event time in the table, or now if that is in the future. It starts
`expire_after_minutes` earlier. So nothing expires while a source is silent, old recordings can be processed, and one
wrong clock cannot expire all rows. Drivers that have read the same rows compute the same window.

Dropping rows before the window does not change results within it: `event_time` is compared first, so such a row is
never the latest of a key that also has a younger row.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties

from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.tables.commit import Step, check_owner_epoch, guarded_commit, post_commit_properties, refresh
from deltaworks.tables.log import Action, stats_of

EVENT_TIME = "event_time"
#: Delta statistics have millisecond precision, rounded down.
_STATISTICS_PRECISION = dt.timedelta(milliseconds=1)
#: Expired rows are deleted ten times per retention period, but at least this many seconds apart.
MIN_EXPIRY_SECONDS = 30.0
EXPIRY_FRACTION = 0.1
#: The table is compacted when it has this many files.
MAX_FILES = 32


class RetentionWindow:
    """Range of event times that a live table retains, relative to its newest event. Without a limit, all rows are
    retained.
    """

    def __init__(self, expire_after_minutes: int | None, *, now: Callable[[], dt.datetime] = utc_now) -> None:
        self._span = None if expire_after_minutes is None else dt.timedelta(minutes=expire_after_minutes)
        self._now = now
        self._newest: dt.datetime | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether the table declares a limit, so that rows expire."""
        return self._span is not None

    @property
    def start(self) -> dt.datetime | None:
        """Earliest event time to retain; None retains all rows."""
        if self._span is None or self._newest is None:
            return None
        return min(self._newest, self._now()) - self._span

    def reset(self) -> None:
        """Clears the newest event time. Call it before all rows are read again."""
        self._newest = None

    def observe(self, times: pa.ChunkedArray) -> None:
        """Advances the newest event time to the maximum of these rows' times."""
        if self._span is not None:
            self._observe(pc.max(times).as_py())

    def observe_files(self, files: Iterable[Action]) -> None:
        """Advances the newest event time to the maximum in these files' statistics."""
        for file in files if self._span is not None else ():
            self._observe(_event_time_bound(file, "maxValues"))

    def filter_rows(self, rows: pa.Table) -> pa.Table:
        """Advances the window by these rows, and returns the rows within it."""
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
    """Deletes expired rows periodically, and compacts small files.

    Each commit is guarded by the owner epoch. Used by the thread that merges the table.
    """

    def __init__(self, window: RetentionWindow, owner: Step, *, expire_after_minutes: int | None) -> None:
        self._window = window
        self._owner = owner
        self._seconds_between = max(MIN_EXPIRY_SECONDS, (expire_after_minutes or 0) * 60 * EXPIRY_FRACTION)
        self._last_expiry: float | None = None

    def run_if_due(self, table: DeltaTable, user_metadata: str) -> None:
        """Deletes expired rows and compacts if due; otherwise returns quickly.

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

        def attempt(_: int) -> bool:
            refresh(table)
            check_owner_epoch(table, self._owner)
            if not _may_contain_before(table, start):
                return False
            table.delete(
                # Cast to the column's exact type, because DataFusion compares equal types only.
                f"{EVENT_TIME} < arrow_cast('{start.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')",
                writer_properties=WriterProperties(compression="ZSTD", compression_level=1),
                commit_properties=self._commit_properties(user_metadata),
                post_commithook_properties=post_commit_properties(table),
            )
            return True

        guarded_commit(table.table_uri, attempt, action="delete old rows", advice="resume the table")

    def _compact(self, table: DeltaTable, user_metadata: str) -> None:
        def attempt(_: int) -> bool:
            refresh(table)
            check_owner_epoch(table, self._owner)
            if len(table.file_uris()) < MAX_FILES:
                return False
            table.optimize.compact(
                writer_properties=WriterProperties(compression="ZSTD", compression_level=1),
                commit_properties=self._commit_properties(user_metadata),
                post_commithook_properties=post_commit_properties(table),
            )
            return True

        guarded_commit(table.table_uri, attempt, action="compact small files", advice="resume the table")

    def _commit_properties(self, user_metadata: str) -> CommitProperties:
        return CommitProperties(
            custom_metadata={"userMetadata": user_metadata},
            max_commit_retries=0,
            app_transactions=[Transaction(self._owner.app_id, self._owner.version)],
        )


def _may_contain_before(table: DeltaTable, start: dt.datetime) -> bool:
    """Returns whether statistics allow rows with an event time before `start`. Reads only the open table's log."""
    files = pa.table(table.get_add_actions(flatten=True))
    if f"min.{EVENT_TIME}" not in files.column_names:
        return bool(files.num_rows)
    bounds = files.column(f"min.{EVENT_TIME}").to_pylist()
    return any(bound is None or _in_utc(bound) < start for bound in bounds)


def _in_utc(bound: dt.datetime) -> dt.datetime:
    return bound if bound.tzinfo else bound.replace(tzinfo=dt.UTC)
