"""Delivers the events of one source from the spool to its sink, with unlimited retries.

Progress is stored before the segments it releases are deleted. An object's plan is stored before the object is put, so
after a crash the same object is put again under the same key. Delivery to a bucket is therefore exactly once; to a
stream or topic it is at least once.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from collector.metrics import SinkMetrics
from collector.packing import ObjectPlan, PackedObject, SpooledEvent, pack, plan_object
from collector.progress import Progress, SourceProgress
from collector.sinks import DeadLetter, RecordSink, SinkBusyError
from collector.sinks.landing import KeyConflictError, repack_with_checksum_key
from collector.spool_folder import DEAD_LETTER_PREFIX, file_size, sync_folder

log = logging.getLogger(__name__)
_FIRST_WAIT_SECONDS, _MAX_WAIT_SECONDS = 0.25, 30.0
#: Bytes read from the spool at a time, and the maximum passed to a stream or topic at a time.
READ_BYTES = 4 << 20
#: Size of a source's dead-letter file from which it contains no further event.
MAX_DEAD_LETTER_BYTES = 64 << 20
_MAX_REASON_LENGTH = 1000


class Cursor(Protocol):
    """Reads the durable events of one source in order. Not thread-safe."""

    def read(self, target_bytes: int) -> list[SpooledEvent]:
        """Returns the next events, about `target_bytes` of them; empty if none is available."""

    def read_between(self, first: int, last: int) -> Iterable[SpooledEvent]:
        """Returns all events of the source from `first` to `last`, regardless of the cursor's position."""

    def skip_to(self, last: int) -> None:
        """Skips events up to `last`, which were delivered from a stored plan."""

    def unread_bytes(self) -> int:
        """Returns the number of bytes after the cursor."""

    @property
    def scanned_seq(self) -> int:
        """The event number up to which the spool was read. Events of other sources were skipped."""


class ObjectSink(Protocol):
    """A sink of packed objects, each put once."""

    def put(self, item: PackedObject) -> None:
        """Puts an object. Putting the same object again must succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseThresholds:
    """When a landing object is closed: at this many bytes of JSON, or this long after its first event."""

    bytes: int = 8 << 20
    seconds: float = 60.0


@dataclass(slots=True)
class DeliveryProblem:
    """Why a delivery fails, and since when (epoch seconds); empty if it works."""

    reason: str = ""
    since: float = 0.0


class Delivery(ABC):
    """The delivery of one source's events. One thread calls `step`; attributes may be read from other threads."""

    def __init__(
        self,
        source: str,
        cursor: Cursor,
        progress: Progress,
        *,
        folder: Path,
        stop: threading.Event,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.source = source
        self.problem = DeliveryProblem()
        self.metrics = SinkMetrics()
        self._cursor = cursor
        self._progress = progress
        self._folder = folder
        self._stop = stop
        self._clock = clock
        self._failures = 0
        #: All events of this source up to this number may be deleted.
        self.deletable_up_to = progress.get(source).delivered_up_to
        #: Whether `deletable_up_to` is newer than the stored progress.
        self.has_scanned = False

    @property
    def has_pending(self) -> bool:
        """Whether events were read from the spool but not delivered yet."""
        raise NotImplementedError

    @property
    def waiting_bytes(self) -> int:
        """Bytes of undelivered events, read or unread. Includes unread events of other sources."""
        return self._pending_bytes + self._cursor.unread_bytes()

    def step(self, *, flush: bool = False) -> bool:
        """Delivers due events; returns whether anything was done. With `flush`, all buffered events are due."""
        did_work = self._deliver_due(flush=flush)
        # Updated only here, where no event is in transit, because other threads delete segments by it.
        self.deletable_up_to = self._deletable_up_to()
        self.has_scanned = True
        return did_work

    @abstractmethod
    def _deliver_due(self, *, flush: bool) -> bool:
        """Does the work of `step`."""

    @abstractmethod
    def _deletable_up_to(self) -> int:
        """Returns the number up to which this source needs no segment."""

    @property
    @abstractmethod
    def _pending_bytes(self) -> int:
        """Bytes of events that were read and are not delivered."""

    def close(self) -> None:  # noqa: B027 - only some sinks have something to close
        """Closes the sink."""

    def _attempt(self, action: Callable[[], None]) -> bool:
        """Runs an action once; returns False if it failed. After a failure waits longer with each consecutive one."""
        try:
            action()
        except Exception as error:
            self._record_failure(error)
            return False
        self._failures, self.problem = 0, DeliveryProblem()
        return True

    def _record_failure(self, error: Exception) -> None:
        self.metrics.errors += 1
        if not self.problem.reason:
            log.warning("%s: delivery to the sink failed: %s: %s", self.source, type(error).__name__, error)
        self.problem = DeliveryProblem(f"{type(error).__name__}: {error}", self.problem.since or self._clock())
        max_wait = min(_MAX_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2.0 ** min(self._failures, 16))
        self._failures += 1
        self._stop.wait(random.uniform(max_wait / 2, max_wait))


class LandingDelivery(Delivery):
    """Packs events into objects and puts them into the landing bucket or, for sealed frames, the vault."""

    def __init__(
        self,
        source: str,
        cursor: Cursor,
        progress: Progress,
        sink: ObjectSink,
        *,
        prefix: str,
        collector: str,
        folder: Path,
        stop: threading.Event,
        thresholds: CloseThresholds | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(source, cursor, progress, folder=folder, stop=stop, clock=clock)
        self._sink = sink
        self._prefix = prefix
        self._collector = collector
        self._thresholds = thresholds or CloseThresholds()
        self._buffer: list[SpooledEvent] = []
        self._buffered_bytes = 0
        self._buffer_started_at = 0.0

    def _deletable_up_to(self) -> int:
        record = self._progress.get(self.source)
        if record.planned_object is not None:
            return record.planned_object.first - 1
        waiting = self._buffer
        return waiting[0].seq - 1 if waiting else max(record.delivered_up_to, self._cursor.scanned_seq)

    @property
    def has_pending(self) -> bool:
        planned_one = self._progress.get(self.source).planned_object is not None
        return planned_one or bool(self._buffer)

    @property
    def _pending_bytes(self) -> int:
        return self._buffered_bytes

    def _deliver_due(self, *, flush: bool) -> bool:
        plan = self._progress.get(self.source).planned_object
        if plan is not None:
            return self._attempt(lambda: self._put_planned(plan))
        added = 0
        if self._buffered_bytes < self._thresholds.bytes:
            added = self._add_to_buffer(
                self._cursor.read(min(READ_BYTES, self._thresholds.bytes - self._buffered_bytes))
            )
        if not self._buffer or not (flush or self._is_due()):
            return added > 0
        events = self._buffer
        return self._attempt(lambda: self._plan_and_put(events))

    def _add_to_buffer(self, events: Sequence[SpooledEvent]) -> int:
        if events and not self._buffer:
            self._buffer_started_at = self._clock()
        self._buffer += events
        self._buffered_bytes += sum(len(event.payload) + 1 for event in events)
        return len(events)

    def _is_due(self) -> bool:
        full = self._buffered_bytes >= self._thresholds.bytes
        return full or self._clock() - self._buffer_started_at >= self._thresholds.seconds

    def _plan_and_put(self, events: Sequence[SpooledEvent]) -> None:
        """Plans the object, stores the plan, puts the object, and stores the progress, in this order."""
        at = datetime.fromtimestamp(self._clock(), UTC)
        plan = plan_object(
            self._prefix, collector=self._collector, first=events[0].seq, last=events[-1].seq, created_at=at
        )
        record = self._progress.get(self.source)
        self._progress.set(self.source, record.model_copy(update={"planned_object": plan}))
        # From here on failures are retried from the plan, as after a crash.
        self._put(plan, events)
        self._clear_buffer()

    def _put_planned(self, plan: ObjectPlan) -> None:
        events = self._buffer
        if not events or (events[0].seq, events[-1].seq) != (plan.first, plan.last):
            events = list(self._cursor.read_between(plan.first, plan.last))
        if events:
            self._put(plan, events)
        else:
            log.error("%s: no event is left for the planned object %s", self.source, plan.key)
            self._record_delivered(plan, 0)
            self._cursor.skip_to(plan.last)
        self._clear_buffer()

    def _put(self, plan: ObjectPlan, events: Sequence[SpooledEvent]) -> None:
        item = pack(plan, events)
        with self.metrics.measure_call():
            try:
                self._sink.put(item)
            except KeyConflictError:
                self._sink.put(repack_with_checksum_key(item, events))
        self._record_delivered(plan, len(events))
        self._cursor.skip_to(plan.last)

    def _record_delivered(self, plan: ObjectPlan, events: int) -> None:
        record = self._progress.get(self.source)
        progress_record = SourceProgress(
            delivered_up_to=plan.last,
            objects=record.objects + (events > 0),
            events=record.events + events,
            dead_letters=record.dead_letters,
        )
        self._progress.set(self.source, progress_record)

    def _clear_buffer(self) -> None:
        self._buffer, self._buffered_bytes = [], 0


class RecordDelivery(Delivery):
    """Sends events to a stream or a topic."""

    def __init__(
        self,
        source: str,
        cursor: Cursor,
        progress: Progress,
        sink: RecordSink,
        *,
        folder: Path,
        stop: threading.Event,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(source, cursor, progress, folder=folder, stop=stop, clock=clock)
        self._sink = sink
        self._unsent: list[SpooledEvent] = []
        self._last_seq = 0
        self._batch_count = 0

    def _deletable_up_to(self) -> int:
        delivered = self._progress.get(self.source).delivered_up_to
        return delivered if self._unsent else max(delivered, self._cursor.scanned_seq)

    @property
    def has_pending(self) -> bool:
        return bool(self._unsent)

    @property
    def _pending_bytes(self) -> int:
        return sum(len(event.payload) + 1 for event in self._unsent)

    def _deliver_due(self, *, flush: bool) -> bool:
        if not self._unsent:
            events = self._cursor.read(READ_BYTES)
            if not events:
                return False
            self._last_seq, self._batch_count = events[-1].seq, len(events)
            self._unsent = events
        return self._attempt(self._send)

    def close(self) -> None:
        self._sink.close()

    def _send(self) -> None:
        try:
            with self.metrics.measure_call():
                dead_letters = self._sink.send(self._unsent)
        except SinkBusyError as error:
            self._unsent = error.remaining
            raise
        write_dead_letters(self._folder, self.source, dead_letters)
        record = self._progress.get(self.source)
        progress_record = SourceProgress(
            delivered_up_to=self._last_seq,
            objects=record.objects,
            events=record.events + self._batch_count - len(dead_letters),
            dead_letters=record.dead_letters + len(dead_letters),
        )
        self._progress.set(self.source, progress_record)
        self._unsent = []


def write_dead_letters(folder: Path, source: str, items: Sequence[DeadLetter]) -> None:
    """Appends events that the sink permanently rejects to a dead-letter file of the spool; synced on return.

    Once the file has `MAX_DEAD_LETTER_BYTES`, only digest and length of further events are appended. The file counts
    against the spool's quota.
    """
    if not items:
        return
    path = folder / f"{DEAD_LETTER_PREFIX}{source}.jsonl"
    size = file_size(path)
    with path.open("a") as file:
        for item in items:
            payload, line = item.event.payload, {"seq": item.event.seq, "reason": item.reason[:_MAX_REASON_LENGTH]}
            if size + len(payload) * 4 // 3 <= MAX_DEAD_LETTER_BYTES:
                line["event"] = base64.b64encode(payload).decode()
            else:
                line |= {"bytes": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}
            size += file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)
    log.error(
        "%s: the sink rejects %d events permanently; they are in the dead-letter file %s: %s",
        source,
        len(items),
        path,
        items[0].reason,
    )
