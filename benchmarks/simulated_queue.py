"""An in-memory queue with the latency of SQS within a region, and the relay and the consumer that empty it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltaworks.sources.objects.relay.queue import BatchOutcome, Message
    from deltaworks.specs.storage import StorageSpec

CALL_SECONDS = 0.02
THREADS = 8
_BATCH = 10


class SimulatedQueue:
    """A queue with one message per object, whose keys cycle through `prefixes` prefixes. Replaces
    `NotificationQueue`."""

    url = "memory"

    def __init__(self, messages: int, *, prefixes: int) -> None:
        self._messages, self._prefixes = messages, prefixes
        self._next = count(0, _BATCH)
        self.deleted = 0

    def receive(self) -> list[Message]:
        """Returns the next ten messages, fewer at the end."""
        from deltaworks.control.clock import utc_now
        from deltaworks.sources.objects.relay.queue import Message

        time.sleep(CALL_SECONDS)
        first, now, held = next(self._next), utc_now(), time.monotonic()
        numbers = range(first, min(first + _BATCH, self._messages))
        return [Message(str(number), f"r{number}", self._body(number), now, held) for number in numbers]

    def delete(self, messages: Sequence[Message]) -> BatchOutcome:
        """Deletes up to ten messages in one request."""
        from deltaworks.sources.objects.relay.queue import BatchOutcome

        time.sleep(CALL_SECONDS)
        self.deleted += len(messages)
        return BatchOutcome(succeeded=len(messages))

    def extend(self, messages: Sequence[Message], *, seconds: int) -> BatchOutcome:
        """Does nothing, since messages never become visible again."""
        return self.delete(())

    return_messages = delete

    def visibility_seconds(self) -> int:
        """Returns a visibility timeout longer than the benchmark."""
        return 600

    def retention_seconds(self) -> int:
        """Returns four days, the default of SQS."""
        return 345_600

    def approximate_backlog(self) -> int:
        """Returns the number of messages that are not deleted."""
        return self._messages - self.deleted

    def approximate_counts(self) -> tuple[int, int]:
        """Returns zero visible and zero in-flight messages."""
        return 0, 0

    def redrive_policy(self) -> None:
        """Returns None: the queue has no dead letter queue."""

    def dead_letter_queue(self) -> None:
        """Returns None: the queue has no dead letter queue."""

    def _body(self, number: int) -> str:
        key = f"tenant_{number % self._prefixes:04d}/2026/01/01/{number:09}.json.gz"
        landed = {"key": key, "size": 100_000, "eTag": f"{number:032x}", "sequencer": f"{number:016x}"}
        record = {
            "eventName": "ObjectCreated:Put",
            "eventTime": "2026-01-01T00:00:00.000Z",
            "s3": {"bucket": {"name": "landing"}, "object": landed},
        }
        return json.dumps({"Records": [record]})


def move_by_relay(queue: SimulatedQueue, storage: StorageSpec) -> float:
    """Returns the seconds in which a relay moves all messages into a new file event log."""
    from deltaworks.control import paths
    from deltaworks.sources.objects.relay.relay import Relay
    from deltaworks.specs.relay import RelaySpec
    from deltaworks.tables.lake import remove_folder

    remove_folder(storage, paths.relay_control("bench"))
    spec = RelaySpec(relay="bench", queue_url=queue.url, buckets=("landing",), receive_threads=THREADS)
    source: Any = queue
    relay = Relay(spec, lake=storage, queue=source, until_drained=True)
    messages = queue.approximate_backlog()
    started = time.perf_counter()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(relay.run)
        # A relay waits before it considers a queue empty; this wait is not measured.
        while queue.deleted < messages and not running.done():
            time.sleep(0.01)
        seconds = time.perf_counter() - started
        counts = running.result()
    if counts.events != messages or counts.deleted != messages:
        raise RuntimeError(f"the relay did not move what was sent: {counts}")
    return seconds


def move_by_consumer(queue: SimulatedQueue) -> float:
    """Returns the seconds in which a consumer with `THREADS` threads receives and deletes all messages."""

    def consume(_thread: int) -> None:
        while messages := queue.receive():
            queue.delete(messages)

    started = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(consume, range(THREADS)))
    return time.perf_counter() - started
