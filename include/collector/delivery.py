"""Takes the events of one source from the spool to its sink, and tries for ever.

What is done is written down before what it frees is deleted. An object is planned, and the plan written down, before it
is put: a crash in between puts the same object again, and its key is there already. So from spool to lake an event
comes once; to a stream or a topic at least once.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import random
import threading
import time
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
from collector.spool_folder import sync_folder

log = logging.getLogger(__name__)
_FIRST_WAIT_SECONDS, _MAX_WAIT_SECONDS = 0.25, 30.0
#: What is read of a spool at once, and the most that a stream or a topic is handed at once.
READ_BYTES = 4 << 20


class Cursor(Protocol):
    """Reads the durable events of one source in order, once. Used by one thread."""

    def read(self, target_bytes: int) -> list[SpooledEvent]:
        """The next events, about so many bytes of them; none where there are no more for now."""

    def read_between(self, first: int, last: int) -> Iterable[SpooledEvent]:
        """All events of the source from `first` to `last`, wherever the cursor is."""

    def skip_to(self, last: int) -> None:
        """Read nothing up to `last`, which was delivered as it was planned."""

    def unread_bytes(self) -> int:
        """How many bytes lie behind the cursor."""

    @property
    def scanned_seq(self) -> int:
        """Everything up to this number was read, or is of other sources."""


class ObjectSink(Protocol):
    """Takes packed objects, each once."""

    def put(self, item: PackedObject) -> None:
        """Put one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseThresholds:
    """When an object is closed: at so many bytes of JSON, or so long after its first event."""

    bytes: int = 8 << 20
    seconds: float = 60.0


@dataclass(slots=True)
class DeliveryProblem:
    """Why a source does not get on, and since when (epoch seconds); empty where it does."""

    reason: str = ""
    since: float = 0.0


class Delivery:
    """The way of one source's events. One thread calls `step`; all else may be read from others."""

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
        #: Nothing of this source up to this number is needed any more.
        self.deletable_up_to = progress.get(source).delivered_up_to
        #: Whether `free_up_to` says more than what was on record at the start.
        self.has_scanned = False

    @property
    def has_pending(self) -> bool:
        """Whether something of this source was read and is not where it belongs."""
        raise NotImplementedError

    @property
    def waiting_bytes(self) -> int:
        """Bytes of what was read and is not where it belongs, and of all that lies unread behind it."""
        return self._pending_bytes + self._cursor.unread_bytes()

    def step(self, *, flush: bool = False) -> bool:
        """Deliver what is due; whether anything was done. With `closing` all that waits is due."""
        done = self._deliver_due(flush=flush)
        # Only here, where nothing that was read is in between: others delete by it.
        self.deletable_up_to = self._deletable_up_to()
        self.has_scanned = True
        return done

    def _deliver_due(self, *, flush: bool) -> bool:
        raise NotImplementedError

    def _deletable_up_to(self) -> int:
        raise NotImplementedError

    @property
    def _pending_bytes(self) -> int:
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the sink."""

    def _attempt(self, action: Callable[[], None]) -> bool:
        """Do something once; False where it failed, after a wait that grows with each failure in a row."""
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
            log.warning("%s: the sink does not take events: %s: %s", self.source, type(error).__name__, error)
        self.problem = DeliveryProblem(f"{type(error).__name__}: {error}", self.problem.since or self._clock())
        longest = min(_MAX_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2.0 ** min(self._failures, 16))
        self._failures += 1
        self._stop.wait(random.uniform(longest / 2, longest))


class LandingDelivery(Delivery):
    """Packs events into objects and puts them."""

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
        """Plan, write the plan down, put, write down that it is done: in this order and no other."""
        at = datetime.fromtimestamp(self._clock(), UTC)
        plan = plan_object(self._prefix, collector=self._collector, first=events[0].seq, last=events[-1].seq, at=at)
        record = self._progress.get(self.source)
        self._progress.set(self.source, record.model_copy(update={"planned_object": plan}))
        # From here on what fails is tried again by the plan, as after a crash.
        self._put(plan, events)
        self._clear_buffer()

    def _put_planned(self, plan: ObjectPlan) -> None:
        events = self._buffer
        if not events or (events[0].seq, events[-1].seq) != (plan.first, plan.last):
            events = list(self._cursor.read_between(plan.first, plan.last))
        if events:
            self._put(plan, events)
        else:
            log.error("%s: nothing is left of what was planned as %s", self.source, plan.key)
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
        done = SourceProgress(
            delivered_up_to=plan.last,
            objects=record.objects + (events > 0),
            events=record.events + events,
            dead_letters=record.dead_letters,
        )
        self._progress.set(self.source, done)

    def _clear_buffer(self) -> None:
        self._buffer, self._buffered_bytes = [], 0


class RecordDelivery(Delivery):
    """Hands events to a stream or a topic."""

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
        done = self._progress.get(self.source).delivered_up_to
        return done if self._unsent else max(done, self._cursor.scanned_seq)

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
            self._unsent = error.left
            raise
        write_dead_letters(self._folder, self.source, dead_letters)
        record = self._progress.get(self.source)
        done = SourceProgress(
            delivered_up_to=self._last_seq,
            objects=record.objects,
            events=record.events + self._batch_count - len(dead_letters),
            dead_letters=record.dead_letters + len(dead_letters),
        )
        self._progress.set(self.source, done)
        self._unsent = []


def write_dead_letters(folder: Path, source: str, items: Sequence[DeadLetter]) -> None:
    """Keep events that a sink can never take in a file of the spool, and say so; synced when this returns."""
    if not items:
        return
    path = folder / f"dead-letters-{source}.jsonl"
    lines = [
        json.dumps(
            {"seq": item.event.seq, "reason": item.reason, "event": base64.b64encode(item.event.payload).decode()}
        )
        for item in items
    ]
    with path.open("a") as file:
        file.write("\n".join([*lines, ""]))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)
    log.error("%s: %d events the sink cannot take are set aside in %s: %s", source, len(items), path, items[0].reason)
