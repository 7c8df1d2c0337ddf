"""Reads the segments of a spool folder in order: what is durable in them, and of one source.

Several cursors read a folder at once, one a source, while its writer appends. A cursor never reads what a power failure
could still take back: the numbers of such events would be given to others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from collector.folder import size_of
from collector.packing import SpooledEvent
from collector.segments import HEADER_BYTES, Kind, Segment, first_seq_of

#: Where the writer of a folder is: the number with which its open segment begins, and up to before which byte of it all
#: is durable.
Durable = Callable[[], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Stretch:
    """What may be read of a segment: up to before byte `end` (None: all of it) and before event `before_seq`.

    What lies behind was written and never promised; its numbers are those of later events.
    """

    path: Path
    end: int | None
    before_seq: int


#: What may be read now, the oldest first.
Readable = Callable[[], list[Stretch]]
_NO_BOUND = 1 << 63


def all_segments(folder: Path) -> list[Stretch]:
    """What may be read of a folder that was recovered and that nobody writes into: all of it."""
    numbered = [(first, path) for path in folder.iterdir() if (first := first_seq_of(path.name)) is not None]
    numbered.sort()
    # Each ends where the next one begins; of a folder that nothing was written to there is none.
    bounds = [*(first for first, _ in numbered[1:]), _NO_BOUND]
    return [Stretch(path, None, bound) for (_, path), bound in zip(numbered, bounds, strict=False)]


def durable_segments(folder: Path, durable: Durable) -> list[Stretch]:
    """What may be read of a folder while somebody writes into it."""
    # In this order: a segment that is begun in between is behind the one that is open, and left for the next time.
    first, end = durable()
    written = all_segments(folder)
    older = [
        stretch for stretch in written if (number := first_seq_of(stretch.path.name)) is not None and number < first
    ]
    current = [stretch for stretch in written if first_seq_of(stretch.path.name) == first]
    return older + [Stretch(stretch.path, end, stretch.before_seq) for stretch in current]


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
        readable: Readable,
        number: int,
        *,
        after: int,
        strange: Callable[[int, int], None] | None = None,
        sealed: bool = False,
    ) -> None:
        self._readable = readable
        self._number = number
        self._strange = strange
        self._sealed = sealed
        self._path: Path | None = None
        self._offset = HEADER_BYTES
        self.scanned = after

    def read(self, most_bytes: int) -> list[SpooledEvent]:
        """The next events, about so many bytes of them; none where there are no more for now."""
        events: list[SpooledEvent] = []
        size = 0
        for event, seq, offset in self._items():
            self._offset = offset
            # What was read before is read again where a segment is opened anew.
            if seq > self.scanned:
                self.scanned = seq
                if event is not None:
                    events.append(event)
                    size += len(event.payload) + 1
                    if size >= most_bytes:
                        break
        return events

    def pass_over(self, last: int) -> None:
        """Read nothing up to `last`."""
        self.scanned = max(self.scanned, last)

    def unread_bytes(self) -> int:
        """How many bytes of the spool, of whatever source, lie behind the cursor. May be called from any thread."""
        path, offset, unread = self._path, self._offset, 0
        for stretch in self._readable():
            if (path is not None and stretch.path < path) or stretch.before_seq <= self.scanned + 1:
                continue
            end = size_of(stretch.path) if stretch.end is None else stretch.end
            unread += max(0, end - (offset if stretch.path == path else HEADER_BYTES))
        return unread

    def between(self, first: int, last: int) -> Iterator[SpooledEvent]:
        """All events of the source from `first` to `last`, wherever the cursor is."""
        other = SpoolCursor(self._readable, self._number, after=first - 1, sealed=self._sealed)
        for event, seq, _ in other._items():
            if seq > last:
                return
            if event is not None and seq >= first:
                yield event

    def _items(self) -> Iterator[tuple[SpooledEvent | None, int, int]]:
        """From where the cursor is on: an event of the source, or None for one of another; its number; the offset
        behind it."""
        stretches = self._readable()
        for stretch in stretches:
            if self._path is not None and stretch.path < self._path:
                continue
            if self._path is None and stretch.before_seq <= self.scanned + 1 and stretch is not stretches[-1]:
                continue
            if stretch.path != self._path:
                self._path, self._offset = stretch.path, HEADER_BYTES
            yield from self._frames(stretch)

    def _frames(self, stretch: Stretch) -> Iterator[tuple[SpooledEvent | None, int, int]]:
        if stretch.end is not None and stretch.end <= self._offset:
            return
        number, before = self._number, stretch.before_seq
        try:
            for frame in Segment(stretch.path, None).frames(start=self._offset, end=stretch.end):
                if frame.kind not in (Kind.EVENT, Kind.IDENTITIES) or (not self._sealed and frame.kind != Kind.EVENT):
                    continue
                if frame.seq >= before:
                    return
                if frame.kind == Kind.IDENTITIES or (not self._sealed and frame.source == number):
                    yield SpooledEvent(frame.seq, frame.payload), frame.seq, frame.end
                    continue
                if self._strange is not None:
                    self._strange(frame.seq, frame.source)
                yield None, frame.seq, frame.end
        except FileNotFoundError:  # a segment nothing was ever promised of, which its writer has removed
            return
