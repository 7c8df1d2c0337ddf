"""The pages of a shard from a position on, over as many iterators as it takes."""

from __future__ import annotations

from datetime import datetime

from deltaworks.sources.kinesis.client import LARGEST_PAGE, PATIENCE_SECONDS, IteratorExpired, StreamCalls
from deltaworks.sources.kinesis.pages import Page
from deltaworks.sources.kinesis.positions import Position


class ShardPages:
    """Reads on from a position. An iterator that expired is replaced by one behind the last record read.

    Reading begins AT the last record handed over: finding it there is the only proof that nothing behind it has been
    trimmed, since sequence numbers have gaps of their own. `intact` says whether it was, and is None while no record
    has come. `passed_over` is the last record that had arrived before the position's time, and when.
    """

    def __init__(self, stream: StreamCalls, shard_id: str, start: Position) -> None:
        """Raises ShardGone when the shard is no longer there."""
        self._stream = stream
        self._shard_id = shard_id
        self._start = start
        self._last = start
        self._iterator: str | None = stream.iterator(shard_id, start, including=True)
        self.intact: bool | None = None
        self.passed_over: tuple[str, int] | None = None

    @property
    def ended(self) -> bool:
        """Whether the shard is closed and read to its end."""
        return self._iterator is None

    def next(self, limit: int, *, patience_seconds: float = PATIENCE_SECONDS) -> Page:
        """The next page; it may be empty before the tip is reached."""
        if self._iterator is None:
            return Page(next_iterator=None, behind_ms=0)
        # The first page begins with the record handed over last.
        limit = min(limit + (self.intact is None and self._start.after is not None), LARGEST_PAGE)
        while True:
            try:
                page = self._stream.records(self._iterator, limit, patience_seconds=patience_seconds)
                break
            except IteratorExpired:
                including = self._last is self._start
                self._iterator = self._stream.iterator(self._shard_id, self._last, including=including)
        self._iterator = page.next_iterator
        page = self._fresh(page)
        if len(page):
            self._last = Position(after=page.sequence_numbers[-1])
        return page

    def _fresh(self, page: Page) -> Page:
        """The page without what was handed over before, or arrived before the position's time."""
        if not len(page):
            return page
        begin = 0
        if self.intact is None:
            self.intact = page.sequence_numbers[0] == self._start.after
            begin = int(self.intact)
        if self._start.at is not None and self._last is self._start:
            # Kinesis takes whole seconds.
            bound = micros(self._start.at)
            begin = next((index for index, arrival in enumerate(page.arrivals) if arrival >= bound), len(page))
            if begin:
                self.passed_over = (page.sequence_numbers[begin - 1], page.arrivals[begin - 1])
        return page.part(begin, len(page)) if begin else page


def micros(instant: datetime) -> int:
    """Microseconds since 1970."""
    return round(instant.timestamp() * 1e6)
