"""Protocols of the Kinesis API that a reader needs, and the registration of enhanced fan-out consumers.

A registered consumer has its own 2 MB/s per shard and is charged while it exists. Only the driver of the query that
reads through it registers it. It stays registered when the query ends, because registration takes a while. `deltaworks
consumers` lists and removes consumers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, Protocol

from deltaworks.errors import TransientError
from deltaworks.sources.kinesis.pages import Page
from deltaworks.sources.kinesis.positions import Position
from deltaworks.sources.kinesis.shards import Shard

ConsumerStatus = Literal["CREATING", "ACTIVE", "DELETING"]
RETRY_SECONDS = 120.0
#: GetRecords returns at most this many records per call.
MAX_PAGE_RECORDS = 10_000
_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A registered enhanced fan-out consumer. If it is registered again under the same name, its ARN differs."""

    name: str
    arn: str
    status: ConsumerStatus
    created: datetime


class ConsumerApi(Protocol):
    """The part of the Kinesis API that registers consumers."""

    def consumer(self, name: str) -> Consumer | None:
        """Returns the stream's consumer of that name; None if there is none."""

    def register_consumer(self, name: str) -> None:
        """Registers a consumer. Succeeds if it is registered already."""


def register_and_wait(
    stream: ConsumerApi,
    name: str,
    *,
    timeout_seconds: float = RETRY_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> Consumer:
    """Registers the consumer if necessary and returns it once it is active. Concurrent drivers get the same one.

    Raises:
        ConfigError: KINESIS_CONSUMER_LIMIT, the stream has the maximum number of consumers; KINESIS_REFUSED.
        TransientError: KINESIS_CONSUMER_NOT_READY, it is not active in time.
    """
    remaining_seconds = timeout_seconds
    while True:
        consumer = stream.consumer(name)
        if consumer is not None and consumer.status == "ACTIVE":
            return consumer
        if remaining_seconds <= 0:
            raise TransientError(
                "KINESIS_CONSUMER_NOT_READY",
                f"The consumer {name} is {consumer.status if consumer else 'not there'} after {timeout_seconds:g} s.",
            )
        # A consumer that is being deleted is waited for and then registered again.
        if consumer is None:
            stream.register_consumer(name)
        sleep(_PAUSE_SECONDS)
        remaining_seconds -= _PAUSE_SECONDS


class IteratorExpired(Exception):
    """Raised for a shard iterator older than five minutes. The caller requests a new one."""


class ShardNotFound(Exception):
    """Raised if a shard no longer exists: it was closed and its retention has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSummary:
    """Identity and retention of a stream. A recreated stream has another `created`."""

    arn: str
    created: datetime
    retention: timedelta


class PageSubscription(Protocol):
    """Protocol of a subscription to a shard; implemented by `Subscription`."""

    def next(self) -> Page:
        """Returns the page of the next event."""

    def close(self) -> None:
        """Ends the subscription. Idempotent."""


class StreamApi(ConsumerApi, Protocol):
    """The part of the Kinesis API that reads a stream."""

    def now(self) -> datetime:
        """Returns the server's time."""

    def summary(self) -> StreamSummary:
        """Returns the stream's identity and retention."""

    def shards(self) -> list[Shard]:
        """Returns all listed shards, including closed ones."""

    def iterator(self, shard_id: str, position: Position, *, inclusive: bool = False) -> str:
        """Returns an iterator after `position.after`, or at it if `inclusive`."""

    def records(self, iterator: str, limit: int, *, retry_seconds: float = RETRY_SECONDS) -> Page:
        """Returns the next page of at most `limit` records and 10 MiB. It may be empty although more records follow."""

    def subscribe(
        self,
        consumer_arn: str,
        shard_id: str,
        position: Position,
        *,
        inclusive: bool = False,
        retry_seconds: float = RETRY_SECONDS,
    ) -> PageSubscription:
        """Subscribes a consumer to the records after `position.after`; with `inclusive`, that record too."""
