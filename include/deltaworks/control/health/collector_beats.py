"""Keeps the records of one collector process current, from a thread of its own.

A storage that fails never fails the collector: the next beat tries again, and the health check sees the age of the last
one written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime

from deltaworks.control.background import BackgroundThread
from deltaworks.control.clock import utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.collector import CollectorBeat, HourCounts, beat_key, counts_key
from deltaworks.control.records.store import RecordStore

log = logging.getLogger(__name__)
#: Events by source and verdict, since the process began.
Taken = Mapping[str, Mapping[str, int]]


class CollectorBeats(BackgroundThread):
    """Writes the heartbeat and the counts of the hour; a last time, what `beat` says then, when it is stopped.

    Args:
        beat: the heartbeat as of now; called by the thread.
        taken: what the process has taken since it began, by source and verdict; called by the thread.
    """

    def __init__(
        self,
        objects: ObjectStore,
        beat: Callable[[], CollectorBeat],
        taken: Callable[[], Taken],
        *,
        beat_seconds: float = 10.0,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        super().__init__(name="collector-beats")
        self._objects = objects
        self._beat = beat
        self._taken = taken
        self._beat_seconds = beat_seconds
        self._clock = clock
        self._counts: HourCounts | None = None
        self._before: Taken = {}

    def write(self) -> None:
        """Write the heartbeat and the counts once. Used by one thread.

        Raises:
            TransientError: the storage does not answer.
        """
        beat = self._beat()
        self._objects.put(beat_key(beat.collector, beat.id), beat.encode())
        self._write_counts(beat)

    def _write_counts(self, beat: CollectorBeat) -> None:
        hour = self._clock().strftime("%Y-%m-%dT%H")
        taken = {source: dict(verdicts) for source, verdicts in self._taken().items()}
        counts = self._counts or self._counts_on_record(beat, hour)
        added = _sum(counts.sources, _difference(taken, self._before))
        current = counts.replace(next_seq=beat.next_seq, sources=added, whole=counts.hour != hour)
        if current != counts or self._counts is None:
            self._objects.put(counts_key(beat.collector, beat.id, counts.hour), current.encode())
        if counts.hour != hour:
            current = HourCounts(id=beat.id, hour=hour, first_seq=beat.next_seq, next_seq=beat.next_seq)
            self._objects.put(counts_key(beat.collector, beat.id, hour), current.encode())
        self._counts, self._before = current, taken

    def _counts_on_record(self, beat: CollectorBeat, hour: str) -> HourCounts:
        """Those of an earlier process with this folder, within this hour; else new ones."""
        standing = RecordStore(self._objects, HourCounts).read(counts_key(beat.collector, beat.id, hour))
        if standing is not None:
            return standing
        return HourCounts(id=beat.id, hour=hour, first_seq=beat.next_seq, next_seq=beat.next_seq)

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
            self._stopping.wait(self._beat_seconds)


def _difference(now: Taken, before: Taken) -> Taken:
    return {
        source: {verdict: count - before.get(source, {}).get(verdict, 0) for verdict, count in verdicts.items()}
        for source, verdicts in now.items()
    }


def _sum(one: Taken, other: Taken) -> dict[str, dict[str, int]]:
    total = {source: dict(verdicts) for source, verdicts in one.items()}
    for source, verdicts in other.items():
        of_source = total.setdefault(source, {})
        for verdict, count in verdicts.items():
            if count:
                of_source[verdict] = of_source.get(verdict, 0) + count
    return {source: verdicts for source, verdicts in total.items() if verdicts}
