"""Registered consumers of a stream: each has 2 MB a second of every shard to itself, and costs money while it is there.

A consumer is registered by the driver of the query that reads through it, and by nobody else; it stays when the query
ends, since registering takes a while. `deltaworks consumers` shows and removes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from deltaworks.errors import TransientError

ConsumerStatus = Literal["CREATING", "ACTIVE", "DELETING"]
_PATIENCE_SECONDS = 120.0
_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A consumer as its stream describes it. Another one of the same name, registered later, has another ARN."""

    name: str
    arn: str
    status: ConsumerStatus
    created: datetime


class ConsumerCalls(Protocol):
    """What registering needs of a stream."""

    def consumer(self, name: str) -> Consumer | None:
        """The stream's consumer of that name."""

    def register_consumer(self, name: str) -> None:
        """Ask for one. Somebody else having done so is success."""


def registered(
    stream: ConsumerCalls,
    name: str,
    *,
    patience_seconds: float = _PATIENCE_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> Consumer:
    """The consumer, active; registered where there is none. Drivers that race get the same one.

    Raises:
        ConfigError: KINESIS_CONSUMER_LIMIT when the stream takes no more consumers, KINESIS_REFUSED.
        TransientError: KINESIS_CONSUMER_NOT_READY when it is not active in time.
    """
    left = patience_seconds
    while True:
        found = stream.consumer(name)
        if found is not None and found.status == "ACTIVE":
            return found
        if left <= 0:
            raise TransientError(
                "KINESIS_CONSUMER_NOT_READY",
                f"The consumer {name} is {found.status if found else 'not there'} after {patience_seconds:g} s.",
                hint="Run again; if it stays so, see the stream's consumers in AWS.",
            )
        # One that is being removed is waited for, and then registered anew.
        if found is None:
            stream.register_consumer(name)
        sleep(_PAUSE_SECONDS)
        left -= _PAUSE_SECONDS
