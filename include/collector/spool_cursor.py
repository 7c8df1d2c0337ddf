"""Reads the segments of a spool folder in order: what is durable in them, and of one source.

Several cursors read a folder at once, one a source, while its writer appends. A cursor never reads what a power failure
could still take back: the numbers of such events would be given to others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from collector.packing import SpooledEvent
from collector.segments import HEADER_BYTES, FrameKind, Segment, parse_segment_name
from collector.spool_folder import file_size

#: Where the writer of a folder is: the number with which its open segment begins, and up to before which byte of it all
#: is durable.
DurablePosition = Callable[[], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ByteRange:
    """What may be read of a segment: up to before byte `end` (None: all of it) and before event `before_seq`.

    What lies behind was written and never promised; its numbers are those of later events.
    """

    path: Path
    end: int | None
    before_seq: int


#: What may be read now, the oldest first.
RangeLister = Callable[[], list[ByteRange]]
_UNBOUNDED_SEQ = 1 << 63


def list_all_ranges(folder: Path) -> list[ByteRange]:
    """What may be read of a folder that was recovered and that nobody writes into: all of it."""
    numbered = [(first, path) for path in folder.iterdir() if (first := parse_segment_name(path.name)) is not None]
    numbered.sort()
    # Each ends where the next one begins; of a folder that nothing was written to there is none.
    bounds = [*(first for first, _ in numbered[1:]), _UNBOUNDED_SEQ]
    return [ByteRange(path, None, bound) for (_, path), bound in zip(numbered, bounds, strict=False)]


def list_durable_ranges(folder: Path, durable_position: DurablePosition) -> list[ByteRange]:
    """What may be read of a folder while somebody writes into it."""
    # In this order: a segment that is begun in between is behind the one that is open, and left for the next time.
    first, end = durable_position()
    written = list_all_ranges(folder)
    older_ranges = [
        byte_range
        for byte_range in written
        if (number := parse_segment_name(byte_range.path.name)) is not None and number < first
    ]
    current = [byte_range for byte_range in written if parse_segment_name(byte_range.path.name) == first]
    return older_ranges + [ByteRange(byte_range.path, end, byte_range.before_seq) for byte_range in current]


class SpoolCursor:
    """Events of one source behind a number. Used by one thread; `scanned` may be read from any.

    Args:
        number: what the frames of the source carry.
        after: begin behind this event.
        strange: called with the number and the source of an event of another source.
        sealed: read the sealed frames of all sources instead. Such a frame has the number of the event behind it.
    """

    def __init__(
        self,
        list_ranges: RangeLister,
        source_number: int,
        *,
        after: int,
        on_unknown_source: Callable[[int, int], None] | None = None,
        sealed_frames: bool = False,
    ) -> None:
        self._list_ranges = list_ranges
        self._source_number = source_number
        self._on_unknown_source = on_unknown_source
        self._sealed_frames = sealed_frames
        self._path: Path | None = None
        self._offset = HEADER_BYTES
        self.scanned_seq = after

    def read(self, target_bytes: int) -> list[SpooledEvent]:
        """The next events, about so many bytes of them; none where there are no more for now."""
        events: list[SpooledEvent] = []
        size = 0
        for event, seq, offset in self._items():
            self._offset = offset
            # What was read before is read again where a segment is opened anew.
            if seq > self.scanned_seq:
                self.scanned_seq = seq
                if event is not None:
                    events.append(event)
                    size += len(event.payload) + 1
                    if size >= target_bytes:
                        break
        return events

    def skip_to(self, last: int) -> None:
        """Read nothing up to `last`."""
        self.scanned_seq = max(self.scanned_seq, last)

    def unread_bytes(self) -> int:
        """How many bytes of the spool, of whatever source, lie behind the cursor. May be called from any thread."""
        path, offset, unread = self._path, self._offset, 0
        for byte_range in self._list_ranges():
            if (path is not None and byte_range.path < path) or byte_range.before_seq <= self.scanned_seq + 1:
                continue
            end = file_size(byte_range.path) if byte_range.end is None else byte_range.end
            unread += max(0, end - (offset if byte_range.path == path else HEADER_BYTES))
        return unread

    def read_between(self, first: int, last: int) -> Iterator[SpooledEvent]:
        """All events of the source from `first` to `last`, wherever the cursor is."""
        cursor = SpoolCursor(self._list_ranges, self._source_number, after=first - 1, sealed_frames=self._sealed_frames)
        for event, seq, _ in cursor._items():
            if seq > last:
                return
            if event is not None and seq >= first:
                yield event

    def _items(self) -> Iterator[tuple[SpooledEvent | None, int, int]]:
        """From where the cursor is on: an event of the source, or None for one of another; its number; the offset
        behind it."""
        byte_ranges = self._list_ranges()
        for byte_range in byte_ranges:
            if self._path is not None and byte_range.path < self._path:
                continue
            if (
                self._path is None
                and byte_range.before_seq <= self.scanned_seq + 1
                and byte_range is not byte_ranges[-1]
            ):
                continue
            if byte_range.path != self._path:
                self._path, self._offset = byte_range.path, HEADER_BYTES
            yield from self._frames(byte_range)

    def _frames(self, byte_range: ByteRange) -> Iterator[tuple[SpooledEvent | None, int, int]]:
        if byte_range.end is not None and byte_range.end <= self._offset:
            return
        number, before = self._source_number, byte_range.before_seq
        try:
            for frame in Segment(byte_range.path, None).frames(start=self._offset, end=byte_range.end):
                if frame.kind not in (FrameKind.EVENT, FrameKind.IDENTITIES) or (
                    not self._sealed_frames and frame.kind != FrameKind.EVENT
                ):
                    continue
                if frame.seq >= before:
                    return
                if frame.kind == FrameKind.IDENTITIES or (not self._sealed_frames and frame.source == number):
                    yield SpooledEvent(frame.seq, frame.payload), frame.seq, frame.end
                    continue
                if self._on_unknown_source is not None:
                    self._on_unknown_source(frame.seq, frame.source)
                yield None, frame.seq, frame.end
        except FileNotFoundError:  # a segment nothing was ever promised of, which its writer has removed
            return
