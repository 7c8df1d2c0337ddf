"""Where spooled events go: objects that land, a Kinesis stream, a Kafka topic. One sink a source.

A sink is handed events in order and returns once they are where they belong. It is called again with the same events
until it has: it never gives up by itself, and what it was handed twice does no harm (landing) or is counted once by id
(Kinesis, Kafka).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from collector.packing import SpooledEvent


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that a sink can never take, and why."""

    event: SpooledEvent
    reason: str


class SinkBusyError(Exception):
    """The sink did not take everything this time. `left` are the events to be handed over again.

    None of them is lost, and all others are where they belong.
    """

    def __init__(self, reason: str, *, remaining: Sequence[SpooledEvent]) -> None:
        super().__init__(reason)
        self.left = list(remaining)


class RecordSink(Protocol):
    """A sink of records. Used by one thread."""

    def send(self, events: Sequence[SpooledEvent]) -> list[DeadLetter]:
        """Hand events over, and wait until they are there; those the sink can never take.

        Raises:
            SinkBusyError: some of them are to be handed over again.
        """

    def close(self) -> None:
        """Let go of connections."""
