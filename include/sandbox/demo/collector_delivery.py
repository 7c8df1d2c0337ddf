"""Posts events to the stack's collector and waits until it has delivered them. Meanwhile the collector can be killed,
or a Kinesis stream resharded.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Any

import httpx2

from deltaworks.control.objects import open_objects
from deltaworks.control.records.collector import SourceStatus, read_collector_heartbeats
from deltaworks.errors import TransientError
from deltaworks.specs.catalog import Catalog
from generator.delivery import Sink
from sandbox.demo.collector_sink import CollectorSink
from sandbox.stack.home import StackHome
from sandbox.stack.processes import stack_processes
from sandbox.stack.supervisor import wait_until

#: By pipeline: a source in include/collectors/edge.yaml whose events contain their own time, and its write key.
SOURCES = {"games": ("games_replay", "games-replay-key"), "mobile": ("mobile_replay", "mobile-replay-key")}
#: Kinesis hashes partition keys to 128 bits.
_MIDDLE_HASH_KEY = str(1 << 127)
_PATIENCE_SECONDS = 120.0
_POLL_SECONDS = 0.5


class CollectorDelivery:
    """Posts events through `post`, and reads the number of delivered events from the collector's heartbeat.

    Deliveries before its creation are not counted, because the spool is kept when the lake is emptied.
    """

    def __init__(self, catalog: Catalog, pipeline: str, url: str) -> None:
        self._source, key = SOURCES[pipeline]
        (self._collector,) = [name for name, spec in catalog.collectors.items() if self._source in spec.sources]
        self._objects = open_objects(catalog.environment.lake)
        self._before = self._delivered()
        self.post = CollectorSink(f"{url}/v1/events", key=key)

    def await_delivery(self) -> SourceStatus:
        """Waits until all posted events are delivered; returns the numbers of events and of objects that contain them.

        Raises:
            TransientError: EVENTS_NOT_DELIVERED, nothing was delivered for two minutes.
        """
        delivered, since = self._delivered(), time.monotonic()
        while delivered.delivered - self._before.delivered < self.post.acknowledged:
            if time.monotonic() - since > _PATIENCE_SECONDS:
                raise TransientError(
                    "EVENTS_NOT_DELIVERED",
                    f"The collector has answered for {self.post.acknowledged:,} events, and "
                    f"{delivered.delivered - self._before.delivered:,} have landed. {delivered.problem}",
                )
            time.sleep(_POLL_SECONDS)
            now = self._delivered()
            if now != delivered:
                delivered, since = now, time.monotonic()
        return SourceStatus(
            delivered=delivered.delivered - self._before.delivered, objects=delivered.objects - self._before.objects
        )

    def _delivered(self) -> SourceStatus:
        """Returns the number of delivered events and objects of the source, summed over all collector processes."""
        beats = [
            beat.sources.get(self._source, SourceStatus())
            for beat in read_collector_heartbeats(self._objects, self._collector)
        ]
        return SourceStatus(
            delivered=sum(beat.delivered for beat in beats),
            objects=sum(beat.objects for beat in beats),
            problem=" ".join(beat.problem for beat in beats),
        )


@dataclass(frozen=True, slots=True)
class CollectorKill:
    """The number of killed processes, and of events that the collector has acknowledged and delivered."""

    killed: int
    acknowledged: int
    delivered: int


class KillingSink:
    """Passes objects on, and kills the collector once, after half of them. The collector has acknowledged the events of
    all earlier requests, and delivers those that wait in its spool when it runs again. A client tries again for half a
    minute; a busy machine may take longer to start the collector, so the sink waits for it.

    Args:
        deliver: receives the objects.
        url: the address of the collector.
        objects: the approximate number of objects.
    """

    def __init__(self, deliver: Sink, home: StackHome, *, url: str, objects: int) -> None:
        self._deliver = deliver
        self._home = home
        self._url = url
        self._countdown = max(1, objects // 2)
        self.killed: int = 0

    def __call__(self, key: str, body: bytes) -> None:
        """Passes one object on."""
        self._deliver(key, body)
        self._countdown -= 1
        if self._countdown == 0:
            for process in stack_processes(self._home):
                if process.kind == "collector":
                    os.kill(process.pid, signal.SIGKILL)
                    self.killed += 1
            wait_until(self._is_ready, seconds=_PATIENCE_SECONDS, poll_seconds=_POLL_SECONDS)

    def _is_ready(self) -> bool:
        try:
            return httpx2.get(f"{self._url}/ready", timeout=5).is_success
        except httpx2.TransportError:
            return False


class ReshardingSink:
    """Passes objects on, and reshards a stream of one shard: splits it after a third of the objects, and merges the
    two new shards after two thirds.

    Args:
        deliver: receives the objects.
        kinesis: a boto3 client.
        objects: the approximate number of objects.
    """

    def __init__(self, deliver: Sink, kinesis: Any, stream: str, *, objects: int) -> None:
        self._deliver = deliver
        self._kinesis = kinesis
        self._stream = stream
        self._steps = {max(1, objects // 3): self._split, max(2, 2 * objects // 3): self._merge}
        self._passed = 0

    def __call__(self, key: str, body: bytes) -> None:
        """Passes one object on."""
        self._deliver(key, body)
        self._passed += 1
        if step := self._steps.get(self._passed):
            step(self.open_shards())
            self._kinesis.get_waiter("stream_exists").wait(StreamName=self._stream)

    def open_shards(self) -> list[str]:
        """Returns the ids of the shards that accept records."""
        shards = self._kinesis.list_shards(StreamName=self._stream)["Shards"]
        return [shard["ShardId"] for shard in shards if "EndingSequenceNumber" not in shard["SequenceNumberRange"]]

    def _split(self, shards: list[str]) -> None:
        self._kinesis.split_shard(StreamName=self._stream, ShardToSplit=shards[0], NewStartingHashKey=_MIDDLE_HASH_KEY)

    def _merge(self, shards: list[str]) -> None:
        self._kinesis.merge_shards(StreamName=self._stream, ShardToMerge=shards[0], AdjacentShardToMerge=shards[1])
