"""Slices of a relay's log: which file events a batch of a stream reads, bounded by files and bytes, the same at every
replay.

A position is the last `seq` included. A slice is planned once per trigger, so scanning is remembered between calls and
bounded in each. An exception in planning ends the query, so planners wait for storage inside.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from deltaworks.sources.objects.file_event_log import FILE_EVENT_SCHEMA, FileEventLog, filter_events
from deltaworks.sources.outages import retry_outages

if TYPE_CHECKING:
    import pyarrow as pa


#: Files of the largest batch, whatever Spark asks for.
MAX_BATCH_FILES = 100_000
_RETRY_SECONDS = 120.0
T = TypeVar("T")
_LOGGER = logging.getLogger(__name__)
_SCAN_ROWS = 20_000
_SCAN_COLUMNS = ("seq", "bucket", "key", "size")


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceLimits:
    """How large one batch may be. A batch holds at least one file, however large; None is no limit."""

    max_files: int | None
    max_bytes: int | None


def retry_storage(call: Callable[[], T]) -> T:
    """Call until it succeeds, fails for good, or has failed for two minutes; its last error is raised."""
    return retry_outages(call, retry_seconds=_RETRY_SECONDS)


class SlicePlanner:
    """The slices of one bucket (or all), prefix and glob of a log."""

    def __init__(
        self, log: FileEventLog, *, bucket: str | None, prefix: str, glob: str | None = None, skip_after: int = 200_000
    ) -> None:
        self._log = log
        self._bucket = bucket
        self._prefix = prefix
        self._glob = glob
        self._skip_after = skip_after
        #: No event of ours lies between the two: (position asked from, position scanned to).
        self._empty_range = (0, 0)
        self._latest_seq = 0
        self._latest_scanned = 0

    def next_end_offset(self, start: int, limits: SliceLimits, *, up_to: int | None = None) -> int:
        """The end of the slice after `start`; `start` itself when nothing of ours is there yet.

        After `skip_after` foreign events in a row it is their end: an empty slice once in a long while keeps
        a restarted stream from scanning them all again.

        Raises:
            ContractError: LOG_ROLLED_BACK, the log ends before `start`.
        """
        asked_from, scanned_to = self._empty_range
        position = scanned_to if asked_from <= start < scanned_to else start
        last = self._log.last_seq() if up_to is None else up_to
        if last < start:
            self._log.check_position({"seq": start})
        end, files, size = start, 0, 0
        while position < last:
            part = self._log.read(position, last, _SCAN_ROWS, columns=_SCAN_COLUMNS)
            if part.num_rows == 0:
                break
            position = part.column("seq")[-1].as_py()
            ours = self._filter(part)
            sizes, seqs = ours.column("size").to_pylist(), ours.column("seq").to_pylist()
            for seq, file_size in zip(seqs, sizes, strict=True):
                if files and _exceeds(limits, files + 1, size + file_size):
                    return end
                end, files, size = seq, files + 1, size + file_size
        if files:
            return end
        self._empty_range = (start, position)
        return position if position - start >= self._skip_after else start

    def rows(self, start: int, end: int) -> pa.Table:
        """The slice's events, in order."""
        return self._filter(self._log.read(start, end))

    def _filter(self, events: pa.Table) -> pa.Table:
        return filter_events(events, bucket=self._bucket, prefix=self._prefix, glob=self._glob)

    def latest_seq(self, after: int, *, scan_rows: int = 100_000) -> int:
        """The newest `seq` of ours known after `after`; looks at `scan_rows` more of the log with every
        call."""
        if after > self._latest_scanned:
            self._latest_seq = self._latest_scanned = after
        part = self._log.read(self._latest_scanned, None, scan_rows, columns=_SCAN_COLUMNS)
        if part.num_rows:
            self._latest_scanned = part.column("seq")[-1].as_py()
            ours = self._filter(part)
            if ours.num_rows:
                self._latest_seq = ours.column("seq")[-1].as_py()
        return max(self._latest_seq, after)


def _exceeds(limits: SliceLimits, files: int, size: int) -> bool:
    too_many = limits.max_files is not None and files > limits.max_files
    return too_many or (limits.max_bytes is not None and size > limits.max_bytes)


class FileEventPlanner:
    """A `BatchPlanner` of file events, and their rows. Used by one thread, that of the query.

    Args:
        start: the offset a query without a checkpoint begins after; from the log's beginning where it is None.
    """

    def __init__(
        self,
        log: FileEventLog,
        *,
        bucket: str,
        prefix: str,
        glob: str | None = None,
        limits: SliceLimits,
        start: dict[str, Any] | None = None,
    ) -> None:
        self._log = log
        self._slices = SlicePlanner(log, bucket=bucket, prefix=prefix, glob=glob)
        self._limits = limits
        self._start = start or {}
        self._max_seq: int | None = None
        self._checked = False

    def initial_offset(self) -> dict[str, Any]:
        log = self._start.get("log")
        return {"seq": self._start.get("seq", 0), **({"log": log} if log else {})}

    def prepare_for_available_now(self) -> None:
        self._max_seq = retry_storage(self._log.last_seq)

    def next_end_offset(self, start: dict[str, Any]) -> dict[str, Any] | None:
        """See BatchPlanner.

        Raises:
            ContractError: LOG_REPLACED or LOG_ROLLED_BACK, the log is not the one that was read up to `start`.
        """
        self._check(start)
        end = retry_storage(lambda: self._slices.next_end_offset(start["seq"], self._limits, up_to=self._max_seq))
        return None if end == start["seq"] else {"seq": end, "log": self._log.table_id}

    def latest_offset(self) -> dict[str, Any] | None:
        try:
            newest = self._slices.latest_seq(self.initial_offset()["seq"])
        except Exception as error:  # a report must never end the query
            _LOGGER.warning("The newest file event is not known: %s", error)
            return None
        return {"seq": newest} if newest else None

    def rows(self, start: dict[str, Any] | None, end: dict[str, Any]) -> pa.Table:
        """The file events of the batch between two offsets, in order; the same at every call.

        Raises:
            ContractError: LOG_REPLACED or LOG_ROLLED_BACK.
        """
        after = (start or self.initial_offset())["seq"]
        if after >= end["seq"]:
            return FILE_EVENT_SCHEMA.empty_table()
        self._check(end)
        return retry_storage(lambda: self._slices.rows(after, end["seq"]))

    def _check(self, position: dict[str, Any]) -> None:
        """Compare the log with the first position of a run; each run opens it again."""
        if not self._checked:
            retry_storage(lambda: self._log.check_position(position))
            self._checked = True
