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

from collector.folder import sync_folder
from collector.metrics import SinkFigures
from collector.packing import ObjectPlan, PackedObject, SpooledEvent, packed, planned
from collector.progress import Progress, SourceProgress
from collector.sinks import RecordSink, SetAside, SinkBusyError
from collector.sinks.landing import KeyTakenError, moved

log = logging.getLogger(__name__)
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.25, 30.0
#: What is read of a spool at once, and the most that a stream or a topic is handed at once.
READ_BYTES = 4 << 20


class Cursor(Protocol):
    """Reads the durable events of one source in order, once. Used by one thread."""

    def read(self, most_bytes: int) -> list[SpooledEvent]:
        """The next events, about so many bytes of them; none where there are no more for now."""

    def between(self, first: int, last: int) -> Iterable[SpooledEvent]:
        """All events of the source from `first` to `last`, wherever the cursor is."""

    def pass_over(self, last: int) -> None:
        """Read nothing up to `last`, which was delivered as it was planned."""

    def unread_bytes(self) -> int:
        """How many bytes lie behind the cursor."""

    @property
    def scanned(self) -> int:
        """Everything up to this number was read, or is of other sources."""


class ObjectSink(Protocol):
    """Takes packed objects, each once."""

    def put(self, item: PackedObject) -> None:
        """Put one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """When an object is closed: at so many bytes of JSON, or so long after its first event."""

    bytes: int = 8 << 20
    seconds: float = 60.0


@dataclass(slots=True)
class Trouble:
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
        self.trouble = Trouble()
        self.figures = SinkFigures()
        self._cursor = cursor
        self._progress = progress
        self._folder = folder
        self._stop = stop
        self._clock = clock
        self._failures = 0
        #: Nothing of this source up to this number is needed any more.
        self.free_up_to = progress.of(source).done
        #: Whether `free_up_to` says more than what was on record at the start.
        self.has_looked = False

    @property
    def waits(self) -> bool:
        """Whether something of this source was read and is not where it belongs."""
        raise NotImplementedError

    @property
    def waiting_bytes(self) -> int:
        """Bytes of what was read and is not where it belongs, and of all that lies unread behind it."""
        return self._held_bytes + self._cursor.unread_bytes()

    def step(self, *, closing: bool = False) -> bool:
        """Deliver what is due; whether anything was done. With `closing` all that waits is due."""
        done = self._deliver_due(closing=closing)
        # Only here, where nothing that was read is in between: others delete by it.
        self.free_up_to = self._free_up_to()
        self.has_looked = True
        return done

    def _deliver_due(self, *, closing: bool) -> bool:
        raise NotImplementedError

    def _free_up_to(self) -> int:
        raise NotImplementedError

    @property
    def _held_bytes(self) -> int:
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the sink."""

    def _try(self, deed: Callable[[], None]) -> bool:
        """Do something once; False where it failed, after a wait that grows with each failure in a row."""
        try:
            deed()
        except Exception as error:
            self._failed(error)
            return False
        self._failures, self.trouble = 0, Trouble()
        return True

    def _failed(self, error: Exception) -> None:
        self.figures.errors += 1
        if not self.trouble.reason:
            log.warning("%s: the sink does not take events: %s: %s", self.source, type(error).__name__, error)
        self.trouble = Trouble(f"{type(error).__name__}: {error}", self.trouble.since or self._clock())
        longest = min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2.0 ** min(self._failures, 16))
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
        closes: Closing | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(source, cursor, progress, folder=folder, stop=stop, clock=clock)
        self._sink = sink
        self._prefix = prefix
        self._collector = collector
        self._closes = closes or Closing()
        self._waiting: list[SpooledEvent] = []
        self._waiting_bytes = 0
        self._first_at = 0.0

    def _free_up_to(self) -> int:
        record = self._progress.of(self.source)
        if record.planned is not None:
            return record.planned.first - 1
        waiting = self._waiting
        return waiting[0].seq - 1 if waiting else max(record.done, self._cursor.scanned)

    @property
    def waits(self) -> bool:
        planned_one = self._progress.of(self.source).planned is not None
        return planned_one or bool(self._waiting)

    @property
    def _held_bytes(self) -> int:
        return self._waiting_bytes

    def _deliver_due(self, *, closing: bool) -> bool:
        plan = self._progress.of(self.source).planned
        if plan is not None:
            return self._try(lambda: self._finish(plan))
        taken = 0
        if self._waiting_bytes < self._closes.bytes:
            taken = self._take(self._cursor.read(min(READ_BYTES, self._closes.bytes - self._waiting_bytes)))
        if not self._waiting or not (closing or self._is_due()):
            return taken > 0
        events = self._waiting
        return self._try(lambda: self._deliver(events))

    def _take(self, events: Sequence[SpooledEvent]) -> int:
        if events and not self._waiting:
            self._first_at = self._clock()
        self._waiting += events
        self._waiting_bytes += sum(len(event.payload) + 1 for event in events)
        return len(events)

    def _is_due(self) -> bool:
        full = self._waiting_bytes >= self._closes.bytes
        return full or self._clock() - self._first_at >= self._closes.seconds

    def _deliver(self, events: Sequence[SpooledEvent]) -> None:
        """Plan, write the plan down, put, write down that it is done: in this order and no other."""
        at = datetime.fromtimestamp(self._clock(), UTC)
        plan = planned(self._prefix, collector=self._collector, first=events[0].seq, last=events[-1].seq, at=at)
        record = self._progress.of(self.source)
        self._progress.set(self.source, record.model_copy(update={"planned": plan}))
        # From here on what fails is tried again by the plan, as after a crash.
        self._put(plan, events)
        self._forget_waiting()

    def _finish(self, plan: ObjectPlan) -> None:
        events = self._waiting
        if not events or (events[0].seq, events[-1].seq) != (plan.first, plan.last):
            events = list(self._cursor.between(plan.first, plan.last))
        if events:
            self._put(plan, events)
        else:
            log.error("%s: nothing is left of what was planned as %s", self.source, plan.key)
            self._done(plan, 0)
            self._cursor.pass_over(plan.last)
        self._forget_waiting()

    def _put(self, plan: ObjectPlan, events: Sequence[SpooledEvent]) -> None:
        item = packed(plan, events)
        with self.figures.calling():
            try:
                self._sink.put(item)
            except KeyTakenError:
                self._sink.put(moved(item, events))
        self._done(plan, len(events))
        self._cursor.pass_over(plan.last)

    def _done(self, plan: ObjectPlan, events: int) -> None:
        record = self._progress.of(self.source)
        done = SourceProgress(
            done=plan.last,
            objects=record.objects + (events > 0),
            events=record.events + events,
            set_aside=record.set_aside,
        )
        self._progress.set(self.source, done)

    def _forget_waiting(self) -> None:
        self._waiting, self._waiting_bytes = [], 0


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
        self._left: list[SpooledEvent] = []
        self._last = 0
        self._count = 0

    def _free_up_to(self) -> int:
        done = self._progress.of(self.source).done
        return done if self._left else max(done, self._cursor.scanned)

    @property
    def waits(self) -> bool:
        return bool(self._left)

    @property
    def _held_bytes(self) -> int:
        return sum(len(event.payload) + 1 for event in self._left)

    def _deliver_due(self, *, closing: bool) -> bool:
        if not self._left:
            events = self._cursor.read(READ_BYTES)
            if not events:
                return False
            self._last, self._count = events[-1].seq, len(events)
            self._left = events
        return self._try(self._send)

    def close(self) -> None:
        self._sink.close()

    def _send(self) -> None:
        try:
            with self.figures.calling():
                aside = self._sink.send(self._left)
        except SinkBusyError as error:
            self._left = error.left
            raise
        set_aside(self._folder, self.source, aside)
        record = self._progress.of(self.source)
        done = SourceProgress(
            done=self._last,
            objects=record.objects,
            events=record.events + self._count - len(aside),
            set_aside=record.set_aside + len(aside),
        )
        self._progress.set(self.source, done)
        self._left = []


def set_aside(folder: Path, source: str, items: Sequence[SetAside]) -> None:
    """Keep events that a sink can never take in a file of the spool, and say so; synced when this returns."""
    if not items:
        return
    path = folder / f"aside-{source}.jsonl"
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
