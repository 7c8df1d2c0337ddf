"""Interface of sinks, which send messages and report rejected and failed ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from deltaworks.errors import ConfigError
from deltaworks.feeds.messages import DeadReason, Message


@dataclass(slots=True)
class SendOutcome:
    """Result of a send by message id. Messages in neither mapping are delivered; `failed` ones are sent again."""

    rejected: dict[str, tuple[DeadReason, str]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, other: SendOutcome) -> None:
        """Adds the result of sending other messages."""
        self.rejected |= other.rejected
        self.failed |= other.failed


class Sink(Protocol):
    """Sends messages with distinct keys, in any order. Used by one thread; it may use threads itself.

    Messages with an unknown result are `failed` and sent again with the same ids.
    """

    def send(self, messages: Sequence[Message]) -> SendOutcome:
        """Sends messages; returns once the result of each is known.

        Raises:
            ConfigError: FEED_SINK_REFUSED, the sink accepts no messages from this client.
        """

    def close(self) -> None:
        """Closes connections."""


def sink_refused_error(destination: str, reason: object, *, hint: str) -> ConfigError:
    """Returns the error of a sink that is missing or denies access."""
    return ConfigError("FEED_SINK_REFUSED", f"{destination} accepts no messages from this feed: {reason}.", hint=hint)


def split_into_batches(
    messages: Sequence[Message], *, max_messages: int, max_bytes: int, extra_bytes: int = 0
) -> Iterator[list[Message]]:
    """Yields batches of at most `max_messages` and `max_bytes`. A message that exceeds `max_bytes` forms its
    own batch."""
    batch: list[Message] = []
    size = 0
    for item in messages:
        length = len(item.body) + extra_bytes
        if batch and (len(batch) == max_messages or size + length > max_bytes):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += length
    if batch:
        yield batch
