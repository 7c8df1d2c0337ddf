"""The pages of a shard from a position on, read by GetRecords or as Kinesis pushes them to a registered consumer.

The driver also probes idle shards for anything new: Kinesis does not tell which record of a shard is the newest.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import datetime

from deltaworks.errors import TransientError
from deltaworks.sources.kinesis.calls import (
    LARGEST_PAGE,
    PATIENCE_SECONDS,
    IteratorExpired,
    Pushes,
    ShardGone,
    StreamCalls,
)
from deltaworks.sources.kinesis.pages import Page, SubscriptionOver
from deltaworks.sources.kinesis.positions import Position

_LOGGER = logging.getLogger(__name__)
_PAUSE_SECONDS = 0.5
_TAKEN_OVER = "ResourceInUseException"


class ShardPages(ABC):
    """Reads on from a position.

    Reading begins AT the last record handed over: finding it there is the only proof that nothing behind it has been
    trimmed, since sequence numbers have gaps of their own.

    Attributes:
        intact: whether that record was there; None while no record has come.
        passed_over: the last record that had arrived before the position's time, and when.
        ended: the shard is closed and read to its end.
        asked_at: the server's time before the last page was asked for: what had arrived by then has come once a page
            is at the tip.
    """

    def __init__(self, stream: StreamCalls, shard_id: str, start: Position) -> None:
        self._stream = stream
        self._shard_id = shard_id
        self._start = start
        self._last = start
        self.intact: bool | None = None
        self.passed_over: tuple[str, int] | None = None
        self.ended = False
        self.asked_at: datetime = stream.now()

    def next(self, limit: int, *, patience_seconds: float = PATIENCE_SECONDS) -> Page:
        """The next page; it may be empty before the tip is reached. How many records it has, `limit` only suggests.

        Raises:
            TransientError: KINESIS_UNREACHABLE when Kinesis throttled or failed for longer than the patience.
        """
        if self.ended:
            return Page(next_iterator=None, behind_ms=0)
        page = self._answer(limit, patience_seconds)
        self.ended = page.next_iterator is None
        page = self._fresh(page)
        if len(page):
            self._last = Position(after=page.sequence_numbers[-1])
        return page

    @abstractmethod
    def close(self) -> None:
        """Read no more. Idempotent."""

    @abstractmethod
    def _answer(self, limit: int, patience_seconds: float) -> Page:
        """The next page as Kinesis gives it."""

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


class PolledPages(ShardPages):
    """Reads by GetRecords. An iterator that expired is replaced by one behind the last record read."""

    def __init__(self, stream: StreamCalls, shard_id: str, start: Position) -> None:
        """Raises ShardGone when the shard is no longer there."""
        super().__init__(stream, shard_id, start)
        self._iterator = stream.iterator(shard_id, start, including=True)

    def close(self) -> None:
        """Nothing is open between two pages."""

    def _answer(self, limit: int, patience_seconds: float) -> Page:
        # The first page begins with the record handed over last.
        limit = min(limit + (self.intact is None and self._start.after is not None), LARGEST_PAGE)
        self.asked_at = self._stream.now()
        while True:
            try:
                page = self._stream.records(self._iterator, limit, patience_seconds=patience_seconds)
                break
            except IteratorExpired:
                including = self._last is self._start
                self._iterator = self._stream.iterator(self._shard_id, self._last, including=including)
        self._iterator = page.next_iterator or ""
        return page


def micros(instant: datetime) -> int:
    """Microseconds since 1970."""
    return round(instant.timestamp() * 1e6)


class PushedPages(ShardPages):
    """Reads by SubscribeToShard.

    A subscription that is over is followed by one behind the number Kinesis gave last. That number moves on where no
    records are, too: subscribing at the start again would never come out of a stretch without records that takes
    longer than a subscription lives.
    """

    def __init__(self, stream: StreamCalls, shard_id: str, start: Position, *, consumer: str) -> None:
        """Raises ShardGone when the shard is no longer there. `consumer` is an ARN."""
        super().__init__(stream, shard_id, start)
        self._consumer = consumer
        self._behind: str | None = None
        self._events = 0
        self._open: Pushes | None = stream.subscribe(consumer, shard_id, start, including=True)

    def close(self) -> None:
        """End the subscription, so that the next one need not take it over."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _answer(self, limit: int, patience_seconds: float) -> Page:
        deadline = time.monotonic() + patience_seconds
        while True:
            subscription = self._open or self._subscribe(max(deadline - time.monotonic(), 1.0))
            try:
                page = subscription.next()
            except SubscriptionOver as over:
                self._end(over, deadline)
                continue
            self._events += 1
            self._behind = page.next_iterator
            return page

    def _subscribe(self, patience_seconds: float) -> Pushes:
        position, including = (self._start, True) if self._behind is None else (Position(after=self._behind), False)
        self.asked_at, self._events = self._stream.now(), 0
        self._open = self._stream.subscribe(
            self._consumer, self._shard_id, position, including=including, patience_seconds=patience_seconds
        )
        return self._open

    def _end(self, over: SubscriptionOver, deadline: float) -> None:
        self.close()
        if str(over) == _TAKEN_OVER:
            _LOGGER.warning(
                "Another reader took over %s of the consumer %s: a consumer is for one query alone.",
                self._shard_id,
                self._consumer,
            )
        if time.monotonic() >= deadline:
            raise TransientError(
                "KINESIS_UNREACHABLE",
                f"Subscriptions to {self._shard_id} gave no event until patience ended: {over}.",
                hint="Check the endpoint, and that no other query has the same consumerName.",
            ) from over
        if not self._events:
            time.sleep(_PAUSE_SECONDS)


_THREADS = 8
_PATIENCE_SECONDS = 3.0
#: A shard with few records answers empty pages before its tip; beyond so many a task continues.
_MOST_PAGES = 10


class Probe:
    """Asks shards for one record behind their positions. Iterators are kept, so an idle shard costs one read."""

    def __init__(self, stream: StreamCalls, *, exclusive: bool = False) -> None:
        """`exclusive`: tasks share the reads of a shard with nobody, so that one that throttles is worth a batch."""
        self._stream = stream
        self._exclusive = exclusive
        self._iterators: dict[str, tuple[tuple[str | None, datetime | None], str]] = {}
        self._lock = threading.Lock()
        self.tips: dict[str, datetime] = {}

    def reset(self, tips: Mapping[str, datetime]) -> None:
        """Begin again at other positions. `tips` are times until which shards are known to have held nothing more."""
        self._iterators.clear()
        self.tips = dict(tips)

    def any(self, positions: Mapping[str, Position], *, until: datetime | None) -> bool:
        """Whether a task would find something in one of the shards; those found at their tip are in `tips`.

        Args:
            until: records that arrived later do not count, and a shard that throttles counts as one with records.
        """
        if not positions:
            return False
        with ThreadPoolExecutor(min(_THREADS, len(positions))) as pool:
            looks = [pool.submit(self._one, shard, position, until) for shard, position in positions.items()]
            any_new = False
            for answer in as_completed(looks):
                if not answer.cancelled() and answer.result():
                    any_new = True
                    for other in looks:
                        other.cancel()
            return any_new

    def _one(self, shard_id: str, position: Position, until: datetime | None) -> bool:
        try:
            return self._look(shard_id, position, until)
        except TransientError:
            # Throttled, by other readers most likely: the next look is soon, and listing shards shows an outage.
            return until is not None or self._exclusive
        except ShardGone:
            return True

    def _look(self, shard_id: str, position: Position, until: datetime | None) -> bool:
        kept, place = self._iterators.get(shard_id), (position.after, position.at)
        iterator = kept[1] if kept and kept[0] == place else self._stream.iterator(shard_id, position)
        for _ in range(_MOST_PAGES):
            asked_at = self._stream.now()
            try:
                page = self._stream.records(iterator, 1, patience_seconds=_PATIENCE_SECONDS)
            except IteratorExpired:
                iterator = self._stream.iterator(shard_id, position)
                continue
            if len(page):
                later = until is not None and page.arrivals[0] > micros(until)
                if later:
                    self._note_tip(shard_id, until or asked_at)
                return not later
            if page.next_iterator is None:
                return True
            iterator = page.next_iterator
            self._iterators[shard_id] = (place, iterator)
            if not page.behind_ms:
                self._note_tip(shard_id, asked_at)
                return False
        return True

    def _note_tip(self, shard_id: str, at: datetime) -> None:
        with self._lock:
            self.tips[shard_id] = max(at, self.tips.get(shard_id, at))
