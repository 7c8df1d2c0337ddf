"""Sinks of spooled events: landing objects, a Kinesis stream, a Kafka topic. One sink per source.

A sink receives events in order and returns once they are delivered. The caller retries with the same events until then.
Repeated events are harmless for landing, and are deduplicated by id for Kinesis and Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from collector.packing import SpooledEvent


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that a sink permanently rejects, and the reason."""

    event: SpooledEvent
    reason: str


class SinkBusyError(Exception):
    """The sink did not accept all events. `remaining` must be sent again; the other events are delivered."""

    def __init__(self, reason: str, *, remaining: Sequence[SpooledEvent]) -> None:
        super().__init__(reason)
        self.remaining = list(remaining)


class RecordSink(Protocol):
    """A sink that receives each event as a record, such as a stream or topic. Not thread-safe."""

    def send(self, events: Sequence[SpooledEvent]) -> list[DeadLetter]:
        """Sends events and waits until they are delivered; returns permanently rejected ones.

        Raises:
            SinkBusyError: some events must be sent again.
        """

    def close(self) -> None:
        """Closes connections."""
