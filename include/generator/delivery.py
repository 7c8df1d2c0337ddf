"""Generated objects, and publishing them in order at a fixed rate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

#: Stores an object's bytes under a key, for example `put_object` of an S3 client.
Sink = Callable[[str, bytes], None]


@dataclass(frozen=True, slots=True)
class Delivery:
    """One object to land.

    Attributes:
        key: key in the bucket.
        events: number of records in it, including malformed ones.
        delivered_at: landing time in simulated time.
    """

    key: str
    body: bytes
    events: int
    delivered_at: datetime


@dataclass(frozen=True, slots=True)
class Published:
    """The number and size of objects published so far."""

    objects: int = 0
    events: int = 0
    size_bytes: int = 0

    def with_delivery(self, delivery: Delivery) -> Published:
        """Returns the totals including one more object."""
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
    """Lands objects in order; one is due every `pause_seconds`.

    The duration of a put counts towards the pause, so objects land at the configured rate; after a slow put the next
    objects land immediately until the rate is reached again.

    Does not retry. Keys and bytes are the same for the same settings, so publishing again overwrites each object with
    identical content.

    Args:
        progress: called after each object with the totals.
        sleep, clock: replaceable for tests; `clock` returns elapsed seconds.

    Raises:
        Errors of `put`; objects published before remain.
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
    """Returns a sink that writes files under `directory` by key."""

    def put(key: str, body: bytes) -> None:
        path = directory / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    return put
