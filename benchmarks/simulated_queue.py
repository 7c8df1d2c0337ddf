"""A queue in memory whose calls take as long as those of SQS within a region, and what moves its messages."""

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
    """A message an object, which lie under so many prefixes in turn. Stands in for `NotificationQueue`."""

    url = "memory"

    def __init__(self, messages: int, *, prefixes: int) -> None:
        self._messages, self._prefixes = messages, prefixes
        self._next = count(0, _BATCH)
        self.deleted = 0

    def receive(self) -> list[Message]:
        """Ten messages, or fewer at the end."""
        from deltaworks.control.clock import utc_now
        from deltaworks.sources.objects.relay.queue import Message

        time.sleep(CALL_SECONDS)
        first, now, held = next(self._next), utc_now(), time.monotonic()
        numbers = range(first, min(first + _BATCH, self._messages))
        return [Message(str(number), f"r{number}", self._body(number), now, held) for number in numbers]

    def delete(self, messages: Sequence[Message]) -> BatchOutcome:
        """Ten messages in a call."""
        from deltaworks.sources.objects.relay.queue import BatchOutcome

        time.sleep(CALL_SECONDS)
        self.deleted += len(messages)
        return BatchOutcome(succeeded=len(messages))

    def extend(self, messages: Sequence[Message], *, seconds: int) -> BatchOutcome:
        """Nothing expires here."""
        return self.delete(())

    return_messages = delete

    def visibility_seconds(self) -> int:
        """Longer than it all takes."""
        return 600

    def retention_seconds(self) -> int:
        """Four days, as SQS has it by default."""
        return 345_600

    def approximate_backlog(self) -> int:
        """What has not been deleted."""
        return self._messages - self.deleted

    def approximate_counts(self) -> tuple[int, int]:
        """Nothing waits once all have been received."""
        return 0, 0

    def redrive_policy(self) -> None:
        """There is no queue of dead letters."""

    def dead_letter_queue(self) -> None:
        """There is no queue of dead letters."""

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
    """Seconds in which a relay moves all messages into a log of its own, made anew."""
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
        # What a relay waits for to be sure that a queue is empty is no part of moving messages.
        while queue.deleted < messages and not running.done():
            time.sleep(0.01)
        seconds = time.perf_counter() - started
        counts = running.result()
    if counts.events != messages or counts.deleted != messages:
        raise RuntimeError(f"the relay did not move what was sent: {counts}")
    return seconds


def move_by_consumer(queue: SimulatedQueue) -> float:
    """Seconds in which as many threads receive and delete all messages."""

    def consume(_thread: int) -> None:
        while messages := queue.receive():
            queue.delete(messages)

    started = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(consume, range(THREADS)))
    return time.perf_counter() - started
