"""Plans slices of a relay's log: the file events of a batch, bounded by files and bytes, the same on every replay.

A position is the last `seq` included. One slice is planned per trigger, so the scan position is cached between calls
and each call is bounded. An exception in planning ends the query, so planners retry storage errors themselves.
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


#: Maximum number of files in a batch, regardless of Spark's limit.
MAX_BATCH_FILES = 100_000
_RETRY_SECONDS = 120.0
T = TypeVar("T")
_LOGGER = logging.getLogger(__name__)
_SCAN_ROWS = 20_000
_SCAN_COLUMNS = ("seq", "bucket", "key", "size")


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceLimits:
    """Limits of one batch; None is no limit. A batch has at least one file, even if that file exceeds a limit."""

    max_files: int | None
    max_bytes: int | None


def retry_storage(call: Callable[[], T]) -> T:
    """Retries a call until it succeeds, fails permanently, or has failed for two minutes; raises the last error."""
    return retry_outages(call, retry_seconds=_RETRY_SECONDS)


class SlicePlanner:
    """Plans slices of a log from the events that match a bucket (or any), prefix and glob."""

    def __init__(
        self, log: FileEventLog, *, bucket: str | None, prefix: str, glob: str | None = None, skip_after: int = 200_000
    ) -> None:
        self._log = log
        self._bucket = bucket
        self._prefix = prefix
        self._glob = glob
        self._skip_after = skip_after
        #: (start position, scanned up to): no matching event lies between the two.
        self._empty_range = (0, 0)
        self._latest_seq = 0
        self._latest_scanned = 0

    def next_end_offset(self, start: int, limits: SliceLimits, *, up_to: int | None = None) -> int:
        """Returns the end of the slice after `start`; `start` itself if there is no matching event yet.

        After `skip_after` or more events without a match, returns the scanned position as the end of an empty slice.
        This saves a restarted stream from scanning these events again.

        Raises:
            ContractError: LOG_ROLLED_BACK, the log ends before `start`.
        """
        range_start, scanned_to = self._empty_range
        position = scanned_to if range_start <= start < scanned_to else start
        last = self._log.last_seq() if up_to is None else up_to
        if last < start:
            self._log.check_position({"seq": start})
        end, files, size = start, 0, 0
        while position < last:
            chunk = self._log.read(position, last, _SCAN_ROWS, columns=_SCAN_COLUMNS)
            if chunk.num_rows == 0:
                break
            position = chunk.column("seq")[-1].as_py()
            matching = self._filter(chunk)
            sizes, seqs = matching.column("size").to_pylist(), matching.column("seq").to_pylist()
            for seq, file_size in zip(seqs, sizes, strict=True):
                if files and _exceeds(limits, files + 1, size + file_size):
                    return end
                end, files, size = seq, files + 1, size + file_size
        if files:
            return end
        self._empty_range = (start, position)
        return position if position - start >= self._skip_after else start

    def rows(self, start: int, end: int) -> pa.Table:
        """Returns the events of the slice, in order."""
        return self._filter(self._log.read(start, end))

    def _filter(self, events: pa.Table) -> pa.Table:
        return filter_events(events, bucket=self._bucket, prefix=self._prefix, glob=self._glob)

    def latest_seq(self, after: int, *, scan_rows: int = 100_000) -> int:
        """Returns the `seq` of the latest matching event found so far, at least `after`. Each call scans `scan_rows`
        more rows.
        """
        if after > self._latest_scanned:
            self._latest_seq = self._latest_scanned = after
        chunk = self._log.read(self._latest_scanned, None, scan_rows, columns=_SCAN_COLUMNS)
        if chunk.num_rows:
            self._latest_scanned = chunk.column("seq")[-1].as_py()
            matching = self._filter(chunk)
            if matching.num_rows:
                self._latest_seq = matching.column("seq")[-1].as_py()
        return max(self._latest_seq, after)


def _exceeds(limits: SliceLimits, files: int, size: int) -> bool:
    too_many = limits.max_files is not None and files > limits.max_files
    return too_many or (limits.max_bytes is not None and size > limits.max_bytes)


class FileEventPlanner:
    """Plans batches of file events as a `BatchPlanner`, and returns their rows. Used by the query's thread.

    Args:
        start: the offset after which a query without a checkpoint begins; None for the beginning of the log.
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
        """Returns the end offset of the batch after `start`; None if no matching event is new.

        Raises:
            ContractError: LOG_REPLACED or LOG_ROLLED_BACK, the log is not the one that was read up to `start`.
        """
        self._check(start)
        end = retry_storage(lambda: self._slices.next_end_offset(start["seq"], self._limits, up_to=self._max_seq))
        return None if end == start["seq"] else {"seq": end, "log": self._log.table_id}

    def latest_offset(self) -> dict[str, Any] | None:
        try:
            latest = self._slices.latest_seq(self.initial_offset()["seq"])
        except Exception as error:  # a report must not end the query
            _LOGGER.warning("Could not determine the latest file event: %s", error)
            return None
        return {"seq": latest} if latest else None

    def rows(self, start: dict[str, Any] | None, end: dict[str, Any]) -> pa.Table:
        """Returns the file events between two offsets, in order. Deterministic.

        Raises:
            ContractError: LOG_REPLACED or LOG_ROLLED_BACK.
        """
        after = (start or self.initial_offset())["seq"]
        if after >= end["seq"]:
            return FILE_EVENT_SCHEMA.empty_table()
        self._check(end)
        return retry_storage(lambda: self._slices.rows(after, end["seq"]))

    def _check(self, position: dict[str, Any]) -> None:
        """Rejects the first position of a run if it does not belong to the log; each run opens the log again."""
        if not self._checked:
            retry_storage(lambda: self._log.check_position(position))
            self._checked = True
