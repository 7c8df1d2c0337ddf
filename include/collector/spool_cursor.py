"""Reads the segments of a spool folder in order: the durable events of one source.

Several cursors, one per source, read a folder concurrently while its writer appends. A cursor never reads unsynced
events, whose numbers may be reused after a power failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from collector.packing import SpooledEvent
from collector.segments import HEADER_BYTES, FrameKind, Segment, parse_segment_name
from collector.spool_folder import file_size

#: The writer's position: the first number of its open segment, and that segment's durable length.
DurablePosition = Callable[[], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The readable part of a segment: bytes before `end` (None: all bytes) and events before `before_seq`.

    Later content is unacknowledged; its numbers belong to later events.
    """

    path: Path
    end: int | None
    before_seq: int


#: Lists the readable ranges, oldest first.
RangeLister = Callable[[], list[ByteRange]]
_UNBOUNDED_SEQ = 1 << 63


def list_all_ranges(folder: Path) -> list[ByteRange]:
    """Returns the complete segments of a recovered folder without a writer."""
    numbered = [(first, path) for path in folder.iterdir() if (first := parse_segment_name(path.name)) is not None]
    numbered.sort()
    # Each range ends where the next begins.
    bounds = [*(first for first, _ in numbered[1:]), _UNBOUNDED_SEQ]
    return [ByteRange(path, None, bound) for (_, path), bound in zip(numbered, bounds, strict=False)]


def list_durable_ranges(folder: Path, durable_position: DurablePosition) -> list[ByteRange]:
    """Returns the readable ranges of a folder with a writer."""
    # Read the position first: a segment created afterwards is ignored until the next call.
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
    """Reads the events of one source after a number. Not thread-safe, except for `scanned_seq`.

    Args:
        source_number: number of the source in frames.
        after: begin after this event.
        on_unknown_source: called with event number and source number of events of other sources.
        sealed_frames: read the sealed frames of all sources instead. A sealed frame has the number of the next event.
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
        """Returns the next events, about `target_bytes` of them; empty if none is available."""
        events: list[SpooledEvent] = []
        size = 0
        for event, seq, offset in self._items():
            self._offset = offset
            # A reopened segment is read again from its start.
            if seq > self.scanned_seq:
                self.scanned_seq = seq
                if event is not None:
                    events.append(event)
                    size += len(event.payload) + 1
                    if size >= target_bytes:
                        break
        return events

    def skip_to(self, last: int) -> None:
        """Skips events up to `last`."""
        self.scanned_seq = max(self.scanned_seq, last)

    def unread_bytes(self) -> int:
        """Returns the number of unread bytes, including events of other sources. Thread-safe."""
        path, offset, unread = self._path, self._offset, 0
        for byte_range in self._list_ranges():
            if (path is not None and byte_range.path < path) or byte_range.before_seq <= self.scanned_seq + 1:
                continue
            end = file_size(byte_range.path) if byte_range.end is None else byte_range.end
            unread += max(0, end - (offset if byte_range.path == path else HEADER_BYTES))
        return unread

    def read_between(self, first: int, last: int) -> Iterator[SpooledEvent]:
        """Yields all events of the source from `first` to `last`, regardless of the cursor's position."""
        cursor = SpoolCursor(self._list_ranges, self._source_number, after=first - 1, sealed_frames=self._sealed_frames)
        for event, seq, _ in cursor._items():
            if seq > last:
                return
            if event is not None and seq >= first:
                yield event

    def _items(self) -> Iterator[tuple[SpooledEvent | None, int, int]]:
        """Yields event, number and end offset of each item after the cursor. The event is None if it belongs to another
        source.
        """
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
        except FileNotFoundError:  # an empty segment that its writer removed
            return
