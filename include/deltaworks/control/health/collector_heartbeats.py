"""Writes the heartbeat and hourly counts of one collector process from a background thread.

Storage failures never stop the collector: the next interval retries, and the health check sees the age of the
heartbeat.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime

from deltaworks.control import paths
from deltaworks.control.background import BackgroundThread
from deltaworks.control.clock import utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.collector import CollectorHeartbeat, HourCounts
from deltaworks.control.records.store import RecordStore

log = logging.getLogger(__name__)
#: Events by source and response, since the process started.
EventCounts = Mapping[str, Mapping[str, int]]


class CollectorHeartbeatWriter(BackgroundThread):
    """Writes the heartbeat and the hourly counts at each interval, and once more when it is stopped.

    Args:
        heartbeat: returns the current heartbeat; called by the thread.
        event_counts: returns the events accepted since the process started, by source and response; called by the
            thread.
    """

    def __init__(
        self,
        objects: ObjectStore,
        heartbeat: Callable[[], CollectorHeartbeat],
        event_counts: Callable[[], EventCounts],
        *,
        interval_seconds: float = 10.0,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        super().__init__(name="collector-beats")
        self._objects = objects
        self._heartbeat = heartbeat
        self._event_counts = event_counts
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._counts: HourCounts | None = None
        self._last_event_counts: EventCounts = {}

    def write(self) -> None:
        """Writes the heartbeat and the counts once. Called by one thread.

        Raises:
            TransientError: the storage does not answer.
        """
        heartbeat = self._heartbeat()
        self._objects.put(paths.collector_heartbeat(heartbeat.collector, heartbeat.id), heartbeat.encode())
        self._write_counts(heartbeat)

    def _write_counts(self, heartbeat: CollectorHeartbeat) -> None:
        hour = self._clock().strftime("%Y-%m-%dT%H")
        event_counts = {source: dict(verdicts) for source, verdicts in self._event_counts().items()}
        counts = self._counts or self._stored_counts(heartbeat, hour)
        added = _sum(counts.sources, _difference(event_counts, self._last_event_counts))
        current = counts.replace(next_seq=heartbeat.next_seq, sources=added, is_complete=counts.hour != hour)
        if current != counts or self._counts is None:
            self._objects.put(paths.collector_counts(heartbeat.collector, heartbeat.id, counts.hour), current.encode())
        if counts.hour != hour:
            current = HourCounts(id=heartbeat.id, hour=hour, first_seq=heartbeat.next_seq, next_seq=heartbeat.next_seq)
            self._objects.put(paths.collector_counts(heartbeat.collector, heartbeat.id, hour), current.encode())
        self._counts, self._last_event_counts = current, event_counts

    def _stored_counts(self, heartbeat: CollectorHeartbeat, hour: str) -> HourCounts:
        """Returns the counts that an earlier process with this spool stored for this hour, or new ones."""
        stored = RecordStore(self._objects, HourCounts).read(
            paths.collector_counts(heartbeat.collector, heartbeat.id, hour)
        )
        if stored is not None:
            return stored
        return HourCounts(id=heartbeat.id, hour=hour, first_seq=heartbeat.next_seq, next_seq=heartbeat.next_seq)

    def _run(self) -> None:
        silent = False
        while True:
            ended = self._stopping.is_set()
            try:
                self.write()
                silent = False
            except Exception as error:
                if not silent:
                    log.warning("the collector's heartbeat is not written: %s", error)
                silent = True
            if ended:
                return
            self._stopping.wait(self._interval_seconds)


def _difference(current: EventCounts, previous: EventCounts) -> EventCounts:
    return {
        source: {verdict: count - previous.get(source, {}).get(verdict, 0) for verdict, count in verdicts.items()}
        for source, verdicts in current.items()
    }


def _sum(left_counts: EventCounts, right_counts: EventCounts) -> dict[str, dict[str, int]]:
    total = {source: dict(verdicts) for source, verdicts in left_counts.items()}
    for source, verdicts in right_counts.items():
        source_counts = total.setdefault(source, {})
        for verdict, count in verdicts.items():
            if count:
                source_counts[verdict] = source_counts.get(verdict, 0) + count
    return {source: verdicts for source, verdicts in total.items() if verdicts}
