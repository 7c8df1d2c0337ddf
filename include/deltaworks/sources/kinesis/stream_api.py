"""What reading needs of a stream, whoever answers, and the registered consumers that records are pushed to.

A registered consumer has 2 MB a second of every shard to itself, and costs money while it exists. It is registered by
the driver of the query that reads through it, and by nobody else; it stays when the query ends, since registering takes
a while. `deltaworks consumers` shows and removes them.
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
#: GetRecords gives no more than this in one answer.
MAX_PAGE_RECORDS = 10_000
_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A consumer as its stream describes it. Another one of the same name, registered later, has another ARN."""

    name: str
    arn: str
    status: ConsumerStatus
    created: datetime


class ConsumerApi(Protocol):
    """What registering needs of a stream."""

    def consumer(self, name: str) -> Consumer | None:
        """The stream's consumer of that name."""

    def register_consumer(self, name: str) -> None:
        """Ask for one. Somebody else having done so is success."""


def register_and_wait(
    stream: ConsumerApi,
    name: str,
    *,
    timeout_seconds: float = RETRY_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> Consumer:
    """The consumer, active; registered where there is none. Drivers that race get the same one.

    Raises:
        ConfigError: KINESIS_CONSUMER_LIMIT when the stream takes no more consumers, KINESIS_REFUSED.
        TransientError: KINESIS_CONSUMER_NOT_READY when it is not active in time.
    """
    left = timeout_seconds
    while True:
        consumer = stream.consumer(name)
        if consumer is not None and consumer.status == "ACTIVE":
            return consumer
        if left <= 0:
            raise TransientError(
                "KINESIS_CONSUMER_NOT_READY",
                f"The consumer {name} is {consumer.status if consumer else 'not there'} after {timeout_seconds:g} s.",
                hint="Run again; if it stays so, see the stream's consumers in AWS.",
            )
        # One that is being removed is waited for, and then registered again.
        if consumer is None:
            stream.register_consumer(name)
        sleep(_PAUSE_SECONDS)
        left -= _PAUSE_SECONDS


class IteratorExpired(Exception):
    """An iterator is older than five minutes: get another one at the same place."""


class ShardNotFound(Exception):
    """A shard is not there any more: it was closed, and the retention has passed since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSummary:
    """How a stream describes itself. Another stream of the same name has another `created`."""

    arn: str
    created: datetime
    retention: timedelta


class PageSubscription(Protocol):
    """A subscription; see `Subscription`."""

    def next(self) -> Page:
        """The next event."""

    def close(self) -> None:
        """End it."""


class StreamApi(ConsumerApi, Protocol):
    """What reading needs of a stream."""

    def now(self) -> datetime:
        """The time by the server's clock."""

    def summary(self) -> StreamSummary:
        """The stream's identity and retention."""

    def shards(self) -> list[Shard]:
        """All shards that are listed, closed ones among them."""

    def iterator(self, shard_id: str, position: Position, *, inclusive: bool = False) -> str:
        """An iterator behind `position.after`, or at it when `including`."""

    def records(self, iterator: str, limit: int, *, retry_seconds: float = RETRY_SECONDS) -> Page:
        """The next page, of at most `limit` records and of 10 MiB; it may be empty before the tip."""

    def subscribe(
        self,
        consumer_arn: str,
        shard_id: str,
        position: Position,
        *,
        inclusive: bool = False,
        retry_seconds: float = RETRY_SECONDS,
    ) -> PageSubscription:
        """Have a consumer pushed what is behind `position.after`, or from it on when `including`."""
