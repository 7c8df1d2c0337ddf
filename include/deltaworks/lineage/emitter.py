"""Sends lineage events without blocking the job: a bounded queue, one thread, and a count of dropped events.

Creating an event (importing OpenLineage, parsing SQL, reading a table) also happens in that thread. If the backend is
unavailable or slow, events are lost, and the job is not affected.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

log = logging.getLogger(__name__)
#: Capacity of the queue. Entries are small, because events are created when they are taken from the queue.
CAPACITY = 100
#: Function that creates an event. It is called in the emitter's thread.
EventFactory = Callable[[], Any]


@dataclass(slots=True)
class EventCounts:
    """Numbers of events: sent, failed (to create or to send), and dropped because the queue was full."""

    sent: int = 0
    failed: int = 0
    dropped: int = 0


class Emitter:
    """Sends events in order. `emit` is thread-safe and returns immediately.

    Args:
        open_sender: returns a function that sends one event; called in the thread before the first event.
        capacity: maximum number of queued events; further events are dropped.
    """

    def __init__(self, open_sender: Callable[[], Callable[[Any], None]], *, capacity: int = CAPACITY) -> None:
        self._open_sender = open_sender
        self._queue: queue.Queue[EventFactory | None] = queue.Queue(capacity)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self.counts = EventCounts()
        # A daemon thread, so that the process can exit.
        self._thread = threading.Thread(target=self._run, name="lineage", daemon=True)
        self._thread.start()

    def emit(self, create_event: EventFactory) -> None:
        """Queues an event, or drops it if the queue is full."""
        try:
            self._queue.put_nowait(create_event)
        except queue.Full:
            self._count("dropped")

    def close(self, *, seconds: float) -> EventCounts:
        """Sends queued events for at most this time, drops the remaining ones, and logs the number of lost events."""
        deadline = time.monotonic() + seconds
        self._closing.set()
        try:
            self._queue.put(None, timeout=seconds)
        except queue.Full:
            pass
        else:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            if self._thread.is_alive():
                self.counts.dropped += sum(1 for create_event in self._queue.queue if create_event is not None) + 1
            lost = self.counts.failed + self.counts.dropped
            if lost:
                log.warning(
                    "lineage: %d events sent, %d failed, %d dropped: the backend is unavailable or too slow",
                    self.counts.sent,
                    self.counts.failed,
                    self.counts.dropped,
                )
            return replace(self.counts)

    def _run(self) -> None:
        send: Callable[[Any], None] | None = None
        while (create_event := self._queue.get()) is not None:
            try:
                send = send or self._open_sender()
                send(create_event())
                self._count("sent")
            except Exception as error:  # lineage must not fail the job
                self._count("failed")
                # Warn once: an unavailable backend would fill the log.
                log.log(logging.WARNING if self.counts.failed == 1 else logging.DEBUG, "lineage: %s", error)

    def _count(self, outcome: str) -> None:
        with self._lock:
            setattr(self.counts, outcome, getattr(self.counts, outcome) + 1)
