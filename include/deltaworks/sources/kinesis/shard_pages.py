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
from deltaworks.sources.kinesis.pages import Page, SubscriptionEnded
from deltaworks.sources.kinesis.positions import Position
from deltaworks.sources.kinesis.stream_api import (
    MAX_PAGE_RECORDS,
    RETRY_SECONDS,
    IteratorExpired,
    PageSubscription,
    ShardNotFound,
    StreamApi,
)

_LOGGER = logging.getLogger(__name__)
_PAUSE_SECONDS = 0.5
_TAKEOVER_CODE = "ResourceInUseException"


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

    def __init__(self, stream: StreamApi, shard_id: str, start: Position) -> None:
        self._stream = stream
        self._shard_id = shard_id
        self._start = start
        self._last = start
        self.is_intact: bool | None = None
        self.skipped_record: tuple[str, int] | None = None
        self.is_ended = False
        self.requested_at: datetime = stream.now()

    def next_page(self, limit: int, *, retry_seconds: float = RETRY_SECONDS) -> Page:
        """The next page; it may be empty before the tip is reached. How many records it has, `limit` only suggests.

        Raises:
            TransientError: KINESIS_UNREACHABLE when Kinesis throttled or failed for longer than the patience.
        """
        if self.is_ended:
            return Page(next_iterator=None, behind_ms=0)
        page = self._fetch(limit, retry_seconds)
        self.is_ended = page.next_iterator is None
        page = self._skip_delivered(page)
        if len(page):
            self._last = Position(after=page.sequence_numbers[-1])
        return page

    @abstractmethod
    def close(self) -> None:
        """Read no more. Idempotent."""

    @abstractmethod
    def _fetch(self, limit: int, retry_seconds: float) -> Page:
        """The next page as Kinesis gives it."""

    def _skip_delivered(self, page: Page) -> Page:
        """The page without what was handed over before, or arrived before the position's time."""
        if not len(page):
            return page
        begin = 0
        if self.is_intact is None:
            self.is_intact = page.sequence_numbers[0] == self._start.after
            begin = int(self.is_intact)
        if self._start.at is not None and self._last is self._start:
            # Kinesis takes whole seconds.
            bound = epoch_us(self._start.at)
            begin = next((index for index, arrival in enumerate(page.arrivals_us) if arrival >= bound), len(page))
            if begin:
                self.skipped_record = (page.sequence_numbers[begin - 1], page.arrivals_us[begin - 1])
        return page.slice(begin, len(page)) if begin else page


class PolledPages(ShardPages):
    """Reads by GetRecords. An iterator that expired is replaced by one behind the last record read."""

    def __init__(self, stream: StreamApi, shard_id: str, start: Position) -> None:
        """Raises ShardNotFound when the shard is no longer there."""
        super().__init__(stream, shard_id, start)
        self._iterator = stream.iterator(shard_id, start, inclusive=True)

    def close(self) -> None:
        """Nothing is open between two pages."""

    def _fetch(self, limit: int, retry_seconds: float) -> Page:
        # The first page begins with the record handed over last.
        limit = min(limit + (self.is_intact is None and self._start.after is not None), MAX_PAGE_RECORDS)
        self.requested_at = self._stream.now()
        while True:
            try:
                page = self._stream.records(self._iterator, limit, retry_seconds=retry_seconds)
                break
            except IteratorExpired:
                including = self._last is self._start
                self._iterator = self._stream.iterator(self._shard_id, self._last, inclusive=including)
        self._iterator = page.next_iterator or ""
        return page


def epoch_us(instant: datetime) -> int:
    """Microseconds since 1970."""
    return round(instant.timestamp() * 1e6)


class PushedPages(ShardPages):
    """Reads by SubscribeToShard.

    A subscription that is over is followed by one behind the number Kinesis gave last. That number moves on where no
    records are, too: subscribing at the start again would never come out of a stretch without records that takes
    longer than a subscription lives.
    """

    def __init__(self, stream: StreamApi, shard_id: str, start: Position, *, consumer: str) -> None:
        """Raises ShardNotFound when the shard is no longer there. `consumer` is an ARN."""
        super().__init__(stream, shard_id, start)
        self._consumer = consumer
        self._continuation: str | None = None
        self._events = 0
        self._subscription: PageSubscription | None = stream.subscribe(consumer, shard_id, start, inclusive=True)

    def close(self) -> None:
        """End the subscription, so that the next one need not take it over."""
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None

    def _fetch(self, limit: int, retry_seconds: float) -> Page:
        deadline = time.monotonic() + retry_seconds
        while True:
            subscription = self._subscription or self._subscribe(max(deadline - time.monotonic(), 1.0))
            try:
                page = subscription.next()
            except SubscriptionEnded as over:
                self._end_subscription(over, deadline)
                continue
            self._events += 1
            self._continuation = page.next_iterator
            return page

    def _subscribe(self, retry_seconds: float) -> PageSubscription:
        position, including = (
            (self._start, True) if self._continuation is None else (Position(after=self._continuation), False)
        )
        self.requested_at, self._events = self._stream.now(), 0
        self._subscription = self._stream.subscribe(
            self._consumer, self._shard_id, position, inclusive=including, retry_seconds=retry_seconds
        )
        return self._subscription

    def _end_subscription(self, over: SubscriptionEnded, deadline: float) -> None:
        self.close()
        if str(over) == _TAKEOVER_CODE:
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
_RETRY_SECONDS = 3.0
#: A shard with few records answers empty pages before its tip; beyond so many a task continues.
_MAX_PAGES = 10


class TipProbe:
    """Asks shards for one record behind their positions. Iterators are kept, so an idle shard costs one read."""

    def __init__(self, stream: StreamApi, *, has_own_throughput: bool = False) -> None:
        """`exclusive`: tasks share the reads of a shard with nobody, so that one that throttles is worth a batch."""
        self._stream = stream
        self._has_own_throughput = has_own_throughput
        self._iterators: dict[str, tuple[tuple[str | None, datetime | None], str]] = {}
        self._lock = threading.Lock()
        self.tips: dict[str, datetime] = {}

    def reset(self, tips: Mapping[str, datetime]) -> None:
        """Begin again at other positions. `tips` are times until which shards are known to have held nothing more."""
        self._iterators.clear()
        self.tips = dict(tips)

    def has_records(self, positions: Mapping[str, Position], *, until: datetime | None) -> bool:
        """Whether a task would find something in one of the shards; those found at their tip are in `tips`.

        Args:
            until: records that arrived later do not count, and a shard that throttles counts as one with records.
        """
        if not positions:
            return False
        with ThreadPoolExecutor(min(_THREADS, len(positions))) as pool:
            looks = [pool.submit(self._probe_shard, shard, position, until) for shard, position in positions.items()]
            any_new = False
            for answer in as_completed(looks):
                if not answer.cancelled() and answer.result():
                    any_new = True
                    for other in looks:
                        other.cancel()
            return any_new

    def _probe_shard(self, shard_id: str, position: Position, until: datetime | None) -> bool:
        try:
            return self._read_ahead(shard_id, position, until)
        except TransientError:
            # Throttled, by other readers most likely: the next look is soon, and listing shards shows an outage.
            return until is not None or self._has_own_throughput
        except ShardNotFound:
            return True

    def _read_ahead(self, shard_id: str, position: Position, until: datetime | None) -> bool:
        kept, place = self._iterators.get(shard_id), (position.after, position.at)
        iterator = kept[1] if kept and kept[0] == place else self._stream.iterator(shard_id, position)
        for _ in range(_MAX_PAGES):
            asked_at = self._stream.now()
            try:
                page = self._stream.records(iterator, 1, retry_seconds=_RETRY_SECONDS)
            except IteratorExpired:
                iterator = self._stream.iterator(shard_id, position)
                continue
            if len(page):
                later = until is not None and page.arrivals_us[0] > epoch_us(until)
                if later:
                    self._record_tip(shard_id, until or asked_at)
                return not later
            if page.next_iterator is None:
                return True
            iterator = page.next_iterator
            self._iterators[shard_id] = (place, iterator)
            if not page.behind_ms:
                self._record_tip(shard_id, asked_at)
                return False
        return True

    def _record_tip(self, shard_id: str, at: datetime) -> None:
        with self._lock:
            self.tips[shard_id] = max(at, self.tips.get(shard_id, at))
