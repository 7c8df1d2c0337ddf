"""The pages of a shard as Kinesis pushes them to a registered consumer, over as many subscriptions as it takes."""

from __future__ import annotations

import logging
import time

from deltaworks.errors import TransientError
from deltaworks.sources.kinesis.calls import Pushes, StreamCalls
from deltaworks.sources.kinesis.pages import Page
from deltaworks.sources.kinesis.positions import Position
from deltaworks.sources.kinesis.shard_pages import ShardPages
from deltaworks.sources.kinesis.subscription import SubscriptionOver

_LOGGER = logging.getLogger(__name__)
_PAUSE_SECONDS = 0.5
_TAKEN_OVER = "ResourceInUseException"


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
