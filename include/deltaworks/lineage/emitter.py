"""Sends events without ever making a job wait: a bounded queue, one thread, and a count of what was dropped.

What an event takes to be made (loading OpenLineage's client, parsing SQL, looking at a table) happens in that thread
too. A backend that is down, slow or silent costs events and nothing else.
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
#: Events that wait; each is small until it is made.
CAPACITY = 100
#: Makes an event. Called in the emitter's thread.
EventFactory = Callable[[], Any]


@dataclass(slots=True)
class Counts:
    """What became of events: sent, failed on the way or while they were made, or dropped since too many waited."""

    sent: int = 0
    failed: int = 0
    dropped: int = 0


class Emitter:
    """Sends events in the order they are given. `emit` may be called from any thread and returns at once.

    Args:
        open_sender: gives what sends one event; called in the thread, before the first one.
        capacity: events that wait at most; more are dropped.
    """

    def __init__(self, open_sender: Callable[[], Callable[[Any], None]], *, capacity: int = CAPACITY) -> None:
        self._open_sender = open_sender
        self._queue: queue.Queue[EventFactory | None] = queue.Queue(capacity)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self.counts = Counts()
        # A thread of the kind that Python does not wait for when it ends.
        self._thread = threading.Thread(target=self._run, name="lineage", daemon=True)
        self._thread.start()

    def emit(self, create_event: EventFactory) -> None:
        """Have an event made and sent, or dropped where too many wait."""
        try:
            self._queue.put_nowait(create_event)
        except queue.Full:
            self._count("dropped")

    def close(self, *, seconds: float) -> Counts:
        """Send what waits, for so long; what is left then is dropped. Logs what was lost."""
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
                self.counts.dropped += sum(1 for made in self._queue.queue if made is not None) + 1
            lost = self.counts.failed + self.counts.dropped
            if lost:
                log.warning(
                    "lineage: %d events sent, %d failed, %d dropped: the backend does not answer, or not fast enough",
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
            except Exception as error:  # whatever happens to lineage, the job goes on
                self._count("failed")
                # Once: a backend that is down would fill the log.
                log.log(logging.WARNING if self.counts.failed == 1 else logging.DEBUG, "lineage: %s", error)

    def _count(self, what: str) -> None:
        with self._lock:
            setattr(self.counts, what, getattr(self.counts, what) + 1)
