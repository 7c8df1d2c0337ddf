"""Posts events to the stack's collector and waits until it has delivered them."""

from __future__ import annotations

import time

from deltaworks.control.objects import open_objects
from deltaworks.control.records.collector import SourceStatus, read_collector_heartbeats
from deltaworks.errors import TransientError
from deltaworks.specs.catalog import Catalog
from sandbox.demo.collector_sink import CollectorSink

#: A source in include/collectors/edge.yaml whose events contain their own time, and its write key.
SOURCE, KEY = "games_replay", "games-replay-key"
_PATIENCE_SECONDS = 120.0
_POLL_SECONDS = 0.5


class CollectorDelivery:
    """Posts events through `post`, and reads the number of delivered events from the collector's heartbeat.

    Deliveries before its creation are not counted, because the spool is kept when the lake is emptied.
    """

    def __init__(self, catalog: Catalog, pipeline: str, url: str) -> None:
        (self._collector,) = [
            name
            for name, spec in catalog.collectors.items()
            if SOURCE in spec.sources and spec.sources[SOURCE].pipeline == pipeline
        ]
        self._objects = open_objects(catalog.environment.lake)
        self._before = self._delivered()
        self.post = CollectorSink(f"{url}/v1/events", key=KEY)

    def await_delivery(self) -> int:
        """Waits until all posted events are delivered; returns the number of objects that contain them.

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
        return delivered.objects - self._before.objects

    def _delivered(self) -> SourceStatus:
        """Returns the number of delivered events and objects of the source, summed over all collector processes."""
        beats = [
            beat.sources.get(SOURCE, SourceStatus())
            for beat in read_collector_heartbeats(self._objects, self._collector)
        ]
        return SourceStatus(
            delivered=sum(beat.delivered for beat in beats),
            objects=sum(beat.objects for beat in beats),
            problem=" ".join(beat.problem for beat in beats),
        )
