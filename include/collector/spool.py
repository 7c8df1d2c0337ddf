"""The spool: a write-ahead log that makes events durable before senders get a response.

One thread writes. It takes all queued entries, numbers the events, appends them to the open segment and syncs once for
all (group commit: the next group collects during a sync). Then it responds to the senders. Acknowledged events survive
a process crash and a power failure, not the loss of the disk.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from collector.disk import Disk, LocalDisk, SegmentFile, write_all
from collector.segments import HEADER_BYTES, SegmentHeader, segment_name
from collector.spool_folder import SpoolFolder
from collector.submissions import Entry, OnGroupWritten, OnWritten, Submission, WriteResult, call_directly, encode_group
from deltaworks.errors import TransientError
from deltaworks.specs.collector import SpoolSpec

#: Target size of a group.
MAX_GROUP_BYTES: Final = 4 << 20
#: Consecutive failed syncs that end the process.
MAX_FAILURES: Final = 2
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: Fill ratio from which the process is not ready. At 1 all requests are rejected.
NEARLY_FULL_RATIO: Final = 0.9


@dataclass(slots=True)
class _OpenSegment:
    """The segment being written. Everything up to `durable_bytes` is durable."""

    path: Path
    first_seq: int
    file: SegmentFile
    durable_bytes: int
    opened_at: float


class Spool:
    """Accepts entries from any thread; its own thread writes them.

    A `WriteResult` without a problem is reported only after its group is durable. One with a problem means that the
    request may be sent again; its partial writes are truncated and its numbers reused.

    Args:
        next_seq: number of the first event, from `recovery.recover`.
        on_group_written: called once per group with all results, in the writer's thread.
        on_failure: called in the writer's thread if the disk keeps failing and the process should end.
        on_sync: called in the writer's thread with the number of requests and the seconds of the sync.
    """

    def __init__(
        self,
        folder: SpoolFolder,
        spec: SpoolSpec,
        *,
        next_seq: int,
        on_group_written: OnGroupWritten = call_directly,
        on_failure: Callable[[TransientError], object] | None = None,
        on_sync: Callable[[int, float], None] = lambda requests, seconds: None,
        disk: Disk | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.failures = 0
        self._folder = folder
        self._spec = spec
        self._on_group_written = on_group_written
        self._on_failure = on_failure
        self._on_sync = on_sync
        self._disk: Disk = disk or LocalDisk()
        self._clock = clock
        self._queue: deque[Submission] = deque()
        self._current_group: list[Submission] = []
        self._ready = threading.Condition(threading.Lock())
        self._idle = False
        self._closing = False
        self._segment: _OpenSegment | None = None
        self._next_seq = next_seq
        self._failures_in_row = 0
        self._durable_position = (next_seq, HEADER_BYTES)
        self._used_bytes = folder.size_bytes()
        self._free_percent = 100.0
        self.refresh_disk_usage()
        self._thread = threading.Thread(target=self._run, name="spool", daemon=True)

    def start(self) -> None:
        """Starts the writer's thread."""
        self._thread.start()

    def submit(self, entries: Sequence[Entry], on_written: OnWritten) -> None:
        """Queues the entries of a request, which are written completely or not at all.

        Args:
            on_written: called with the result, in the writer's thread or by `on_group_written`.
        """
        self.submit_all([Submission(entries, on_written)])

    def submit_all(self, submissions: Sequence[Submission]) -> None:
        """Queues the entries of several requests, as `submit` does."""
        with self._ready:
            if not self._closing:
                self._queue.extend(submissions)
                if self._idle:
                    self._ready.notify()
                return
        for submission in submissions:
            submission.on_written(WriteResult(problem="draining"))

    def durable_position(self) -> tuple[int, int]:
        """Returns how far the folder may be read: the first number of the newest segment, and its durable length.
        Earlier segments may be read up to the first number of the next.
        """
        return self._durable_position

    def next_seq(self) -> int:
        """Returns the number of the next event. All events below it are durable."""
        return self._next_seq

    def record_deleted(self, size_bytes: int) -> None:
        """Records that a segment was deleted."""
        self._used_bytes -= size_bytes

    def rejection_reason(self) -> str | None:
        """Returns why requests are rejected, `spool_full` or `disk`; None if they are accepted. Cheap enough to call
        before a body is read.
        """
        if self._used_bytes >= self._spec.max_bytes:
            return "spool_full"
        return "disk" if self._free_percent < self._spec.min_free_percent else None

    def fill_ratio(self) -> float:
        """Returns how full the spool is, from 0 to 1; also 1 if the disk is nearly full."""
        return 1.0 if self.rejection_reason() else self._used_bytes / self._spec.max_bytes

    def gauges(self) -> dict[str, float]:
        """Returns the current gauges for metrics."""
        return {
            "spool_bytes": self._used_bytes,
            "spool_fill": self.fill_ratio(),
            "spool_next_seq": self._next_seq,
            "spool_disk_failures": self.failures,
            "spool_oldest_seconds": self._folder.oldest_age_seconds(self._clock()),
        }

    def refresh_disk_usage(self) -> None:
        """Recalculates the folder's size and the free disk space, because sinks delete segments."""
        self._used_bytes = self._folder.size_bytes()
        self._free_percent = self._disk.free_percent(self._folder.path)

    def close(self) -> None:
        """Writes queued entries, closes the segment and ends the thread. Later submissions are rejected."""
        with self._ready:
            self._closing = True
            self._ready.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while (group := self._next_group()) is not None:
                self._current_group = group
                if group:
                    self._commit(group)
                self._current_group = []
                self._close_expired()
            self._close_segment()
        except Exception as error:  # no request may wait forever, so any error in the writer ends the process
            with self._ready:
                self._closing = True
                waiting = [*self._current_group, *self._queue]
                self._queue.clear()
            self._on_group_written([(submission.on_written, WriteResult(problem="disk")) for submission in waiting])
            self._report_failure(f"{type(error).__name__}: {error}")

    def _next_group(self) -> list[Submission] | None:
        """Returns all queued submissions up to `MAX_GROUP_BYTES`; empty if a segment expired; None at the end."""
        with self._ready:
            while not self._queue:
                if self._closing:
                    return None
                remaining_seconds = None
                if self._segment is not None:
                    remaining_seconds = self._segment.opened_at + self._spec.segment_seconds - self._clock()
                    if remaining_seconds <= 0:
                        return []
                self._idle = True
                self._ready.wait(remaining_seconds)
                self._idle = False
            group: list[Submission] = []
            size = 0
            while self._queue and (size < MAX_GROUP_BYTES):
                group.append(self._queue.popleft())
                size += group[-1].size_bytes
            return group

    def _commit(self, group: list[Submission]) -> None:
        """Writes and syncs a group, then responds; on failure truncates it, then responds."""
        data, first_seqs, seq = encode_group(group, self._next_seq)
        if self._used_bytes + len(data) > self._spec.max_bytes:
            group = self._within_quota(group)
            if not group:
                return
            data, first_seqs, seq = encode_group(group, self._next_seq)
        started_at = time.perf_counter()
        try:
            segment = self._get_segment()
            write_all(segment.file, data)
        except OSError as error:
            self._reject_group(group, error, before_sync=True)
            return
        try:
            started_at = time.perf_counter()
            segment.file.sync()
        except OSError as error:
            self._reject_group(group, error, before_sync=False)
            return
        self._on_sync(len(group), time.perf_counter() - started_at)
        self._failures_in_row = 0
        segment.durable_bytes += len(data)
        self._used_bytes += len(data)
        self._next_seq = seq
        self._durable_position = (segment.first_seq, segment.durable_bytes)
        self._on_group_written(
            [(item.on_written, WriteResult(number)) for item, number in zip(group, first_seqs, strict=True)]
        )
        if segment.durable_bytes >= self._spec.segment_bytes:
            self._close_segment()

    def _within_quota(self, group: list[Submission]) -> list[Submission]:
        """Returns the submissions that fit into the quota; rejects the others."""
        fits: list[Submission] = []
        rejected: list[Submission] = []
        available_bytes = self._spec.max_bytes - self._used_bytes
        for submission in group:
            size = submission.frame_bytes
            if size <= available_bytes:
                available_bytes -= size
                fits.append(submission)
            else:
                rejected.append(submission)
        if rejected:
            self._on_group_written([(item.on_written, WriteResult(problem="spool_full")) for item in rejected])
        return fits

    def _get_segment(self) -> _OpenSegment:
        """Returns the open segment, or creates one. A new segment's name is durable on return."""
        if self._segment is not None:
            return self._segment
        path = self._folder.path / segment_name(self._next_seq)
        file = self._disk.create(path)
        now = self._clock()
        self._segment = _OpenSegment(path, self._next_seq, file, 0, now)
        header = SegmentHeader(self._folder.collector, self._next_seq, int(now * 1000)).encode()
        write_all(file, header)
        file.sync()
        self._disk.sync_folder(self._folder.path)
        self._segment.durable_bytes = HEADER_BYTES
        self._used_bytes += HEADER_BYTES
        return self._segment

    def _reject_group(self, group: list[Submission], error: OSError, *, before_sync: bool) -> None:
        """Truncates the writes of a group and rejects its requests.

        A full disk fails before the sync: the write is truncated and the segment continues. After other failures, or a
        failed sync, the kernel may have dropped pages, so the segment ends at its durable length.
        """
        is_full = error.errno in _NO_SPACE
        if not is_full:
            self.failures += 1
            self._failures_in_row += 1
        if not (is_full and before_sync and self._truncate_segment()):
            self._abandon_segment()
        self._on_group_written([(submission.on_written, WriteResult(problem="disk")) for submission in group])
        self._fail_if_repeated(error)

    def _truncate_segment(self) -> bool:
        """Truncates the open segment to its durable length, to continue there; returns whether that succeeded."""
        segment = self._segment
        if segment is None or segment.durable_bytes < HEADER_BYTES:
            return segment is None
        try:
            segment.file.truncate(segment.durable_bytes)
        except OSError:
            return False
        return True

    def _abandon_segment(self) -> None:
        """Ends the open segment at its durable length without a sync.

        If later bytes reappear after a crash, their numbers belong to the next segment, and readers ignore them.
        """
        segment, self._segment = self._segment, None
        if segment is None:
            return
        with contextlib.suppress(OSError):
            segment.file.truncate(segment.durable_bytes)
        with contextlib.suppress(OSError):
            segment.file.close()
        if segment.durable_bytes <= HEADER_BYTES:
            with contextlib.suppress(OSError):
                self._disk.remove(segment.path)

    def _fail_if_repeated(self, error: OSError) -> None:
        if self._failures_in_row >= MAX_FAILURES:
            self._report_failure(f"{MAX_FAILURES} groups in a row failed: {error}")

    def _report_failure(self, problem: str) -> None:
        if self._on_failure is not None:
            self._on_failure(
                TransientError("SPOOL_FAILED", f"The disk of {self._folder.path} cannot store events: {problem}.")
            )

    def _close_expired(self) -> None:
        segment = self._segment
        if segment is not None and self._clock() - segment.opened_at >= self._spec.segment_seconds:
            self._close_segment()

    def _close_segment(self) -> None:
        """Closes the open segment; the next group creates another."""
        segment, self._segment = self._segment, None
        if segment is not None:
            with contextlib.suppress(OSError):
                segment.file.close()
