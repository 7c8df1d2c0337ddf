"""Reads the segments of a spool folder in order: what is durable in them, and of one source.

Several cursors read a folder at once, one a source, while its writer appends. A cursor never reads what a power failure
could still take back: the numbers of such events would be given to others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from collector.packing import SpooledEvent
from collector.segments import HEADER_BYTES, Kind, Segment, first_seq_of

#: Where the open segment begins (the number of its first event), and up to which byte of it all is durable.
Durable = Callable[[], tuple[int, int] | None]


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment: the number its name has, and the number behind its last event; None while it is the newest."""

    path: Path
    first_seq: int
    next_seq: int | None


def segment_files(folder: Path) -> list[SegmentFile]:
    """The segments of a folder, the oldest first."""
    numbers = {first: name for name in os.listdir(folder) if (first := first_seq_of(name)) is not None}
    firsts = sorted(numbers)
    return [
        SegmentFile(folder / numbers[first], first, behind)
        for first, behind in zip(firsts, [*firsts[1:], None], strict=True)
    ]


class SpoolCursor:
    """Events of one source behind a number. Used by one thread; `scanned` may be read from any.

    Args:
        number: what the frames of the source carry.
        after: begin behind this event.
        durable: where the writer of the folder is; None where nobody writes into it, and all of it can be read.
        strange: called with the number and the source of frames of other sources.
    """

    def __init__(
        self,
        folder: Path,
        number: int,
        *,
        after: int,
        durable: Durable = lambda: None,
        strange: Callable[[int, int], None] | None = None,
    ) -> None:
        self._folder = folder
        self._number = number
        self._durable = durable
        self._strange = strange
        self._current: SegmentFile | None = None
        self._offset = HEADER_BYTES
        self.scanned = after

    def read(self, most_bytes: int) -> list[SpooledEvent]:
        """The next events, about so many bytes of them; none where there are no more for now."""
        events: list[SpooledEvent] = []
        size = 0
        for event, scanned, offset in self._next():
            self._offset = offset
            self.scanned = scanned
            if event is not None:
                events.append(event)
                size += len(event.payload) + 1
                if size >= most_bytes:
                    break
        return events

    def pass_over(self, last: int) -> None:
        """Read nothing up to `last`."""
        self.scanned = max(self.scanned, last)

    def between(self, first: int, last: int) -> Iterator[SpooledEvent]:
        """All events of the source from `first` to `last`, wherever the cursor is."""
        other = SpoolCursor(self._folder, self._number, after=first - 1, durable=self._durable)
        for event, scanned, _ in other._next():
            if scanned > last:
                return
            if event is not None:
                yield event

    def _next(self) -> Iterator[tuple[SpooledEvent | None, int, int]]:
        """Event by event: one of the source, or None for one of another; its number; the offset behind it."""
        while self._enter():
            segment = self._current
            if segment is None:
                return
            open_at = self._durable()
            yield from self._frames(segment, open_at)
            still_open = open_at is not None and open_at[0] <= segment.first_seq
            if segment.next_seq is None or still_open:
                return
            # All of it is read, and another one is behind it.
            self.scanned = max(self.scanned, segment.next_seq - 1)
            self._current = None

    def _frames(
        self, segment: SegmentFile, open_at: tuple[int, int] | None
    ) -> Iterator[tuple[SpooledEvent | None, int, int]]:
        end = None
        if open_at is not None and open_at[0] <= segment.first_seq:
            end = open_at[1] if open_at[0] == segment.first_seq else HEADER_BYTES
        number, most = self._number, segment.next_seq
        for frame in Segment(segment.path, None).frames(start=self._offset, end=end):
            if frame.kind != Kind.EVENT:
                continue
            # What was never promised lies behind the last good group of a segment whose disk has failed.
            if most is not None and frame.seq >= most:
                return
            if frame.source == number:
                fresh = frame.seq > self.scanned
                yield SpooledEvent(frame.seq, frame.payload) if fresh else None, max(frame.seq, self.scanned), frame.end
            else:
                if self._strange is not None:
                    self._strange(frame.seq, frame.source)
                yield None, max(frame.seq, self.scanned), frame.end

    def _enter(self) -> bool:
        """Have a segment to read: the one under way, or the first that has events behind `scanned`."""
        files = segment_files(self._folder)
        if self._current is not None:
            # Whether another one is behind it meanwhile.
            self._current = next((file for file in files if file.first_seq == self._current.first_seq), None)
            if self._current is not None:
                return True
        wanted = next((file for file in files if file.next_seq is None or file.next_seq > self.scanned + 1), None)
        if wanted is None:
            return False
        self._current, self._offset = wanted, HEADER_BYTES
        return True
