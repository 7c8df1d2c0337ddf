"""Objects that land one after another, and the landing of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

#: Takes a key and the object's bytes and stores it: `put_object` of a client the caller made, or a file's writing.
Sink = Callable[[str, bytes], None]


@dataclass(frozen=True, slots=True)
class Delivery:
    """One object as it lands.

    Attributes:
        key: where it lands in the bucket.
        events: the pieces (or lines) in it, broken ones included.
        delivered_at: when it lands in simulated time.
    """

    key: str
    body: bytes
    events: int
    delivered_at: datetime


@dataclass(frozen=True, slots=True)
class Published:
    """How much has landed so far."""

    objects: int = 0
    events: int = 0
    size_bytes: int = 0

    def with_delivery(self, delivery: Delivery) -> Published:
        """With one object more."""
        return Published(self.objects + 1, self.events + delivery.events, self.size_bytes + len(delivery.body))


def publish(
    deliveries: Iterable[Delivery],
    put: Sink,
    *,
    pause_seconds: float = 0.0,
    progress: Callable[[Published], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Published:
    """Land objects in order, each after the put before it has returned, and `pause_seconds` after that one was due.

    What a put takes is part of the pause, so that objects come at the rate that was set; after a put that took
    longer the next ones come at once until that rate is made up for.

    Not retried here and not idempotent by itself, but keys and bytes are the same for the same settings: publishing
    again replaces each object by its equal.

    Args:
        progress: called after each object with what has landed.
        sleep, clock: how to wait, and the seconds that have passed; tests have their own.

    Raises:
        Whatever `put` raises; what landed before stays.
    """
    published, started = Published(), clock()
    for delivery in deliveries:
        remaining_seconds = started + published.objects * pause_seconds - clock()
        if pause_seconds > 0 and remaining_seconds > 0:
            sleep(remaining_seconds)
        put(delivery.key, delivery.body)
        published = published.with_delivery(delivery)
        if progress is not None:
            progress(published)
    return published


def directory_sink(directory: Path) -> Sink:
    """A sink that writes files under `directory` by their keys."""

    def put(key: str, body: bytes) -> None:
        path = directory / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    return put
