"""What every sink is: it takes messages, and says which it refuses for good and which are to be tried again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from deltaworks.errors import ConfigError
from deltaworks.feeds.messages import DeadReason, Message


@dataclass(slots=True)
class SendOutcome:
    """What became of messages, by their ids. What is in neither is delivered."""

    rejected: dict[str, tuple[DeadReason, str]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, other: SendOutcome) -> None:
        """Take over what became of other messages."""
        self.rejected |= other.rejected
        self.failed |= other.failed


class Sink(Protocol):
    """Delivers messages, each of another key, in any order. Used by one thread; it may have threads of its own.

    What cannot be told is `failed`: such messages are sent again, under the same ids.
    """

    def send(self, messages: Sequence[Message]) -> SendOutcome:
        """Send; returns once it is known what became of every message.

        Raises:
            ConfigError: FEED_SINK_REFUSED, the sink takes nothing at all from us.
        """

    def close(self) -> None:
        """Let go of connections."""


def sink_refused_error(destination: str, reason: object, *, hint: str) -> ConfigError:
    """The error of a sink that takes nothing: it is not there, or we may not."""
    return ConfigError("FEED_SINK_REFUSED", f"{destination} takes nothing from this feed: {reason}.", hint=hint)


def split_into_batches(
    messages: Sequence[Message], *, max_messages: int, max_bytes: int, extra_bytes: int = 0
) -> Iterator[list[Message]]:
    """The messages in batches of at most so many and, unless one alone is larger, so many bytes."""
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
