"""Reads pages of a shard from a position on, by GetRecords or by enhanced fan-out, and probes shards for new records.

The driver must probe idle shards, because Kinesis does not report the position of a shard's latest record.
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
    """Reads the pages of a shard from a position on.

    Reading begins AT the last delivered record: only its presence proves that no record after it has expired, because
    sequence numbers have gaps.

    Attributes:
        is_intact: whether that record was present; None before the first record.
        skipped_record: the last record that arrived before the position's time, and its arrival time.
        is_ended: the shard is closed and completely read.
        requested_at: the server's time before the last request. Once a page reaches the shard's latest record, all
            records
            that had arrived by then are delivered.
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
        """Returns the next page. It may be empty although more records follow. `limit` is only a hint.

        Raises:
            TransientError: KINESIS_UNREACHABLE, Kinesis throttled or failed for all of `retry_seconds`.
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
        """Stops reading and releases the connection. Idempotent."""

    @abstractmethod
    def _fetch(self, limit: int, retry_seconds: float) -> Page:
        """Requests the next page and returns it with records that were delivered already."""

    def _skip_delivered(self, page: Page) -> Page:
        """Removes the records that were delivered already or arrived before the position's time."""
        if not len(page):
            return page
        begin = 0
        if self.is_intact is None:
            self.is_intact = page.sequence_numbers[0] == self._start.after
            begin = int(self.is_intact)
        if self._start.at is not None and self._last is self._start:
            # Kinesis accepts full seconds only.
            bound = epoch_us(self._start.at)
            begin = next((index for index, arrival in enumerate(page.arrivals_us) if arrival >= bound), len(page))
            if begin:
                self.skipped_record = (page.sequence_numbers[begin - 1], page.arrivals_us[begin - 1])
        return page.slice(begin, len(page)) if begin else page


class PolledPages(ShardPages):
    """Reads a shard by GetRecords. Replaces an expired iterator by one after the last record read."""

    def __init__(self, stream: StreamApi, shard_id: str, start: Position) -> None:
        """Raises ShardNotFound if the shard no longer exists."""
        super().__init__(stream, shard_id, start)
        self._iterator = stream.iterator(shard_id, start, inclusive=True)

    def close(self) -> None:
        """Does nothing: no connection is open between pages."""

    def _fetch(self, limit: int, retry_seconds: float) -> Page:
        # The first page begins with the last delivered record.
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
    """Returns microseconds since 1970."""
    return round(instant.timestamp() * 1e6)


class PushedPages(ShardPages):
    """Reads a shard by SubscribeToShard (enhanced fan-out).

    When a subscription ends, the next one starts after the last sequence number that Kinesis reported. That number
    advances even without records. If each subscription started at the beginning again, the reader would never get past
    a range without records that takes longer than one subscription.
    """

    def __init__(self, stream: StreamApi, shard_id: str, start: Position, *, consumer: str) -> None:
        """Raises ShardNotFound if the shard no longer exists. `consumer` is an ARN."""
        super().__init__(stream, shard_id, start)
        self._consumer = consumer
        self._continuation: str | None = None
        self._events = 0
        self._subscription: PageSubscription | None = stream.subscribe(consumer, shard_id, start, inclusive=True)

    def close(self) -> None:
        """Ends the subscription, so that the next one can start without taking it over."""
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None

    def _fetch(self, limit: int, retry_seconds: float) -> Page:
        deadline = time.monotonic() + retry_seconds
        while True:
            subscription = self._subscription or self._subscribe(max(deadline - time.monotonic(), 1.0))
            try:
                page = subscription.next()
            except SubscriptionEnded as ended:
                self._end_subscription(ended, deadline)
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

    def _end_subscription(self, ended: SubscriptionEnded, deadline: float) -> None:
        self.close()
        if str(ended) == _TAKEOVER_CODE:
            _LOGGER.warning(
                "Another reader took over shard %s of consumer %s. A consumer serves one query.",
                self._shard_id,
                self._consumer,
            )
        if time.monotonic() >= deadline:
            raise TransientError(
                "KINESIS_UNREACHABLE",
                f"Subscriptions to {self._shard_id} returned no event in all retries: {ended}.",
                hint="Check the endpoint, and that no other query uses the same consumerName.",
            ) from ended
        if not self._events:
            time.sleep(_PAUSE_SECONDS)


_THREADS = 8
_RETRY_SECONDS = 3.0
#: A sparse shard returns empty pages before its latest record. After this many, the probe stops and a task reads on.
_MAX_PAGES = 10


class NewRecordProbe:
    """Checks whether shards have a record after given positions. Iterators are cached, so an idle shard needs one
    request.
    """

    def __init__(self, stream: StreamApi, *, has_own_throughput: bool = False) -> None:
        """Creates a probe without cached iterators.

        Args:
            has_own_throughput: tasks use enhanced fan-out and not the shard's read limit. A batch is then worth
                starting
                although the probe is throttled.
        """
        self._stream = stream
        self._has_own_throughput = has_own_throughput
        self._iterators: dict[str, tuple[tuple[str | None, datetime | None], str]] = {}
        self._lock = threading.Lock()
        self.caught_up_times: dict[str, datetime] = {}

    def reset(self, caught_up_times: Mapping[str, datetime]) -> None:
        """Forgets all iterators. `caught_up_times` has, per shard, the time up to which all records are known to be
        read.
        """
        self._iterators.clear()
        self.caught_up_times = dict(caught_up_times)

    def has_records(self, positions: Mapping[str, Position], *, until: datetime | None) -> bool:
        """Returns whether one of the shards has records after its position. Updates `caught_up_times` of shards without
        new records.

        Args:
            until: later records are ignored, and a throttled shard counts as one with records.
        """
        if not positions:
            return False
        with ThreadPoolExecutor(min(_THREADS, len(positions))) as pool:
            futures = [pool.submit(self._probe_shard, shard, position, until) for shard, position in positions.items()]
            any_new = False
            for future in as_completed(futures):
                if not future.cancelled() and future.result():
                    any_new = True
                    for other in futures:
                        other.cancel()
            return any_new

    def _probe_shard(self, shard_id: str, position: Position, until: datetime | None) -> bool:
        try:
            return self._read_ahead(shard_id, position, until)
        except TransientError:
            # Probably throttled by other readers. The next probe follows soon, and listing shards reveals an outage.
            return until is not None or self._has_own_throughput
        except ShardNotFound:
            return True

    def _read_ahead(self, shard_id: str, position: Position, until: datetime | None) -> bool:
        cached, position_key = self._iterators.get(shard_id), (position.after, position.at)
        iterator = cached[1] if cached and cached[0] == position_key else self._stream.iterator(shard_id, position)
        for _ in range(_MAX_PAGES):
            requested_at = self._stream.now()
            try:
                page = self._stream.records(iterator, 1, retry_seconds=_RETRY_SECONDS)
            except IteratorExpired:
                iterator = self._stream.iterator(shard_id, position)
                continue
            if len(page):
                is_too_late = until is not None and page.arrivals_us[0] > epoch_us(until)
                if is_too_late:
                    self._record_caught_up(shard_id, until or requested_at)
                return not is_too_late
            if page.next_iterator is None:
                return True
            iterator = page.next_iterator
            self._iterators[shard_id] = (position_key, iterator)
            if not page.behind_ms:
                self._record_caught_up(shard_id, requested_at)
                return False
        return True

    def _record_caught_up(self, shard_id: str, at: datetime) -> None:
        with self._lock:
            self.caught_up_times[shard_id] = max(at, self.caught_up_times.get(shard_id, at))
