"""What reading needs of a stream, whoever answers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from deltaworks.sources.kinesis.consumers import Consumer
from deltaworks.sources.kinesis.pages import Page
from deltaworks.sources.kinesis.positions import Position
from deltaworks.sources.kinesis.shards import Shard

PATIENCE_SECONDS = 120.0
#: GetRecords gives no more than this in one answer.
LARGEST_PAGE = 10_000


class IteratorExpired(Exception):
    """An iterator is older than five minutes: get another one at the same place."""


class ShardGone(Exception):
    """A shard is not there any more: it was closed, and the retention has passed since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSummary:
    """What a stream says of itself. `created` tells it from another stream of the same name."""

    arn: str
    created: datetime
    retention: timedelta


class Pushes(Protocol):
    """A subscription; see `Subscription`."""

    def next(self) -> Page:
        """The next event."""

    def close(self) -> None:
        """End it."""


class StreamCalls(Protocol):
    """What reading needs of a stream."""

    def now(self) -> datetime:
        """The time by the server's clock."""

    def summary(self) -> StreamSummary:
        """The stream's identity and retention."""

    def shards(self) -> list[Shard]:
        """All shards that are listed, closed ones among them."""

    def iterator(self, shard_id: str, position: Position, *, including: bool = False) -> str:
        """An iterator behind `position.after`, or at it when `including`."""

    def records(self, iterator: str, limit: int, *, patience_seconds: float = PATIENCE_SECONDS) -> Page:
        """The next page, of at most `limit` records and of 10 MiB; it may be empty before the tip."""

    def subscribe(
        self,
        consumer_arn: str,
        shard_id: str,
        position: Position,
        *,
        including: bool = False,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> Pushes:
        """Have a consumer pushed what is behind `position.after`, or from it on when `including`."""

    def consumer(self, name: str) -> Consumer | None:
        """The stream's consumer of that name."""

    def register_consumer(self, name: str) -> None:
        """Ask for a consumer. Somebody else having done so is success."""
