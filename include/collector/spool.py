"""The spool: events are on the disk of the collector before anybody is told that they were taken.

One thread writes. It takes all that waits, gives the events their numbers, appends them to the open segment and syncs
it once for all (group commit: the delay of the last sync is what gathers the next group). Only then are the senders
answered. What was answered survives the end of the process and of the machine's power, not the loss of its disk.
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

#: A group takes requests until it is as long.
MAX_GROUP_BYTES: Final = 4 << 20
#: Failed syncs in a row that end the process: of the disk nothing is to be hoped for.
MAX_FAILURES: Final = 2
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: From here on `fill` says that no more should come; at 1 nothing is taken.
NEARLY_FULL_RATIO: Final = 0.9


@dataclass(slots=True)
class _OpenSegment:
    """The segment that is written. Up to `good` all is durable."""

    path: Path
    first_seq: int
    file: SegmentFile
    durable_bytes: int
    opened_at: float


class Spool:
    """Takes entries from any thread; one thread of its own writes them.

    A `Written` without a problem is given after its group is durable, and never before. One with a problem says that
    the request may be sent again; what of it reached the disk is cut off, and its numbers are given to others.

    Args:
        next_seq: the number of the first event, from `recovery.recover`.
        wake: is handed what became of a group, once, in the writer's thread.
        on_failure: is called in the writer's thread where the disk is hopeless, and the process had better end.
        on_group: is called in the writer's thread with the requests of a group and the seconds of its sync.
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
        """Begin to write."""
        self._thread.start()

    def submit(self, entries: Sequence[Entry], on_written: OnWritten) -> None:
        """Have entries written, all of them or none, one behind the other.

        Args:
            done: is given what became of them, from the writer's thread or as `wake` has it.
        """
        self.submit_all([Submission(entries, on_written)])

    def submit_all(self, submissions: Sequence[Submission]) -> None:
        """Have the entries of several requests written, as `submit` does, in one hand-over."""
        with self._ready:
            if not self._closing:
                self._queue.extend(submissions)
                if self._idle:
                    self._ready.notify()
                return
        for submission in submissions:
            submission.on_written(WriteResult(problem="draining"))

    def durable_position(self) -> tuple[int, int]:
        """Up to where the folder may be read now: the first number of the newest segment that was written to, and the
        byte up to which it is durable. Segments before it may be read up to the first number of the next one."""
        return self._durable_position

    def next_seq(self) -> int:
        """The number the next event will get. Every event below it is durable."""
        return self._next_seq

    def record_deleted(self, size_bytes: int) -> None:
        """Take note that a segment was deleted."""
        self._used_bytes -= size_bytes

    def rejection_reason(self) -> str | None:
        """Why nothing can be taken: `spool_full` or `disk`; None where it can. Costs nothing, so it is looked at
        before a body is read."""
        if self._used_bytes >= self._spec.max_bytes:
            return "spool_full"
        return "disk" if self._free_percent < self._spec.min_free_percent else None

    def fill_ratio(self) -> float:
        """How full the spool is, from 0 to 1; 1 too where the disk has no more to give."""
        return 1.0 if self.rejection_reason() else self._used_bytes / self._spec.max_bytes

    def gauges(self) -> dict[str, float]:
        """Figures of now, for metrics."""
        return {
            "spool_bytes": self._used_bytes,
            "spool_fill": self.fill_ratio(),
            "spool_next_seq": self._next_seq,
            "spool_disk_failures": self.failures,
            "spool_oldest_seconds": self._folder.oldest_age_seconds(self._clock()),
        }

    def refresh_disk_usage(self) -> None:
        """Count anew what the folder takes and what the disk has left: sinks remove segments meanwhile."""
        self._used_bytes = self._folder.size_bytes()
        self._free_percent = self._disk.free_percent(self._folder.path)

    def close(self) -> None:
        """Write what waits, close the segment and end the thread. What comes later is turned away."""
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
        except Exception as error:  # whatever ends the writer ends the process: nobody may wait for it for ever
            with self._ready:
                self._closing = True
                waiting = [*self._current_group, *self._queue]
                self._queue.clear()
            self._on_group_written([(submission.on_written, WriteResult(problem="disk")) for submission in waiting])
            self._report_failure(f"{type(error).__name__}: {error}")

    def _next_group(self) -> list[Submission] | None:
        """All that waits, up to `GROUP_BYTES`; nothing where a segment has become old; None at the end."""
        with self._ready:
            while not self._queue:
                if self._closing:
                    return None
                left = None
                if self._segment is not None:
                    left = self._segment.opened_at + self._spec.segment_seconds - self._clock()
                    if left <= 0:
                        return []
                self._idle = True
                self._ready.wait(left)
                self._idle = False
            group: list[Submission] = []
            size = 0
            while self._queue and (size < MAX_GROUP_BYTES):
                group.append(self._queue.popleft())
                size += group[-1].size_bytes
            return group

    def _commit(self, group: list[Submission]) -> None:
        """Write a group and sync it, then answer; where that fails cut it off, then answer."""
        data, firsts, seq = encode_group(group, self._next_seq)
        begun = time.perf_counter()
        try:
            segment = self._get_segment()
            write_all(segment.file, data)
        except OSError as error:
            self._reject_group(group, error, before_sync=True)
            return
        try:
            begun = time.perf_counter()
            segment.file.sync()
        except OSError as error:
            self._reject_group(group, error, before_sync=False)
            return
        self._on_sync(len(group), time.perf_counter() - begun)
        self._failures_in_row = 0
        segment.durable_bytes += len(data)
        self._used_bytes += len(data)
        self._next_seq = seq
        self._durable_position = (segment.first_seq, segment.durable_bytes)
        self._on_group_written(
            [(item.on_written, WriteResult(number)) for item, number in zip(group, firsts, strict=True)]
        )
        if segment.durable_bytes >= self._spec.segment_bytes:
            self._close_segment()

    def _get_segment(self) -> _OpenSegment:
        """The open segment, or a new one, whose name is durable before anything in it is promised."""
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
        """Take back what was written of a group, and answer that it was not taken.

        A disk that is full says so before the sync: what was written is cut off and the segment goes on. After any
        other failure, and after a failed sync, the kernel may have dropped pages: the segment ends at its last good
        offset.
        """
        full = error.errno in _NO_SPACE
        if not full:
            self.failures += 1
            self._failures_in_row += 1
        if not (full and before_sync and self._truncate_segment()):
            self._abandon_segment()
        self._on_group_written([(submission.on_written, WriteResult(problem="disk")) for submission in group])
        self._fail_if_repeated(error)

    def _truncate_segment(self) -> bool:
        """Cut the open segment at its last good offset, to write on there; whether that could be done."""
        segment = self._segment
        if segment is None or segment.durable_bytes < HEADER_BYTES:
            return segment is None
        try:
            segment.file.truncate(segment.durable_bytes)
        except OSError:
            return False
        return True

    def _abandon_segment(self) -> None:
        """End the open segment at its last good offset without a sync of it.

        Where what lies behind comes back after a crash, its numbers are those of the next segment, and nobody reads it.
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
                TransientError(
                    "SPOOL_FAILED",
                    f"The disk of {self._folder.path} does not take events: {problem}.",
                    hint="Look at the disk; the process is started again by whoever runs it.",
                )
            )

    def _close_expired(self) -> None:
        segment = self._segment
        if segment is not None and self._clock() - segment.opened_at >= self._spec.segment_seconds:
            self._close_segment()

    def _close_segment(self) -> None:
        """Close the open segment: the next group begins another one."""
        segment, self._segment = self._segment, None
        if segment is not None:
            with contextlib.suppress(OSError):
                segment.file.close()
