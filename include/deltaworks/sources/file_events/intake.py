"""What stands between the queue and the log: receiving threads, a bounded buffer, a watch over held messages.

The buffer is bounded, so a log that cannot be written stops receiving instead of filling memory. A message is
held from its receipt until `done`; one held for half the queue's visibility timeout gets the timeout anew, so
an outage of the log's storage neither doubles work nor drives messages into the dead-letter queue.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterable, Sequence

from botocore.exceptions import BotoCoreError, ClientError

from deltaworks.errors import DeltaworksError
from deltaworks.sources.file_events.queue import BATCH, Message, NotificationQueue
from deltaworks.sources.outages import through_outages

_LOGGER = logging.getLogger(__name__)


class Intake:
    """Receives from a queue with several threads until closed; `take` and `done` are for one thread.

    Args:
        capacity: messages held at most, short of what the receiving threads have in hand.
        patience_seconds: how long a queue may fail to answer before the intake fails.
    """

    def __init__(
        self,
        source: NotificationQueue,
        *,
        threads: int,
        capacity: int,
        patience_seconds: float = 120.0,
    ) -> None:
        self._source = source
        self._buffer: queue.Queue[list[Message]] = queue.Queue(maxsize=max(1, capacity // BATCH))
        self._patience_seconds = patience_seconds
        self._closed = threading.Event()
        self._abandoned = threading.Event()
        self._failure: BaseException | None = None
        self._held: dict[str, tuple[Message, float]] = {}
        self._lock = threading.Lock()
        self.visibility_seconds = source.visibility_seconds()
        self.extended = 0
        self._receivers = [
            threading.Thread(target=self._receive, name=f"receive-{number}", daemon=True) for number in range(threads)
        ]
        self._keeper = threading.Thread(target=self._keep, name="visibility", daemon=True)

    def start(self) -> None:
        """Begin to receive."""
        for thread in (*self._receivers, self._keeper):
            thread.start()

    def take(self, *, at_most: int, within_seconds: float, wake: threading.Event) -> list[Message]:
        """Messages collected until there are `at_most` or the first is `within_seconds` old; none when `wake`
        is set or that time passes without any.

        Raises:
            ConfigError, ClientError, BotoCoreError: what ended a receiving thread.
        """
        taken: list[Message] = []
        deadline = time.monotonic() + within_seconds
        while len(taken) < at_most and not wake.is_set():
            if self._failure is not None:
                raise self._failure
            # Past its time an append still takes all that waits already: small ones would let the buffer grow old.
            remaining = max(0.0, deadline - time.monotonic())
            try:
                batch = self._buffer.get(timeout=min(remaining, 0.2)) if remaining else self._buffer.get_nowait()
            except queue.Empty:
                if remaining:
                    continue
                break
            if not taken:
                deadline = min(message.held_since for message in batch) + within_seconds
            taken += batch
        return taken

    def done(self, messages: Iterable[Message]) -> None:
        """Stop watching over messages that have been deleted."""
        with self._lock:
            for message in messages:
                self._held.pop(message.receipt, None)

    def close(self, *, join_seconds: float) -> list[Message]:
        """Stop receiving; what is still in the buffer, once the threads are done or the time is over."""
        self._closed.set()
        rest: list[Message] = []
        deadline = time.monotonic() + join_seconds
        while True:
            rest += self._drain()
            if not any(thread.is_alive() for thread in self._receivers) or time.monotonic() >= deadline:
                self._abandoned.set()
                return rest + self._drain()
            time.sleep(0.02)

    def held(self) -> list[Message]:
        """Everything received and not yet done."""
        with self._lock:
            return [message for message, _ in self._held.values()]

    def _drain(self) -> list[Message]:
        drained: list[Message] = []
        while True:
            try:
                drained += self._buffer.get_nowait()
            except queue.Empty:
                return drained

    def _receive(self) -> None:
        try:
            while not self._closed.is_set():
                messages = through_outages(
                    self._source.receive,
                    patience_seconds=self._patience_seconds,
                    give_up=self._closed,
                )
                if messages:
                    self._hold(messages)
        except (ClientError, BotoCoreError, DeltaworksError) as error:
            self._failure = error

    def _hold(self, messages: Sequence[Message]) -> None:
        with self._lock:
            self._held.update({message.receipt: (message, message.held_since) for message in messages})
        # A closing intake is still drained by `close`; what misses that comes back by itself.
        while not self._abandoned.is_set():
            try:
                self._buffer.put(list(messages), timeout=0.2)
                return
            except queue.Full:
                continue

    def _keep(self) -> None:
        pause = min(1.0, self.visibility_seconds / 8)
        while not self._closed.wait(pause):
            self.extend_long_held()

    def extend_long_held(self) -> int:
        """Give messages held for half the visibility timeout the whole of it anew; how many got it."""
        now = time.monotonic()
        with self._lock:
            due = [m for m, since in self._held.values() if now - since >= self.visibility_seconds / 2]
        if not due:
            return 0
        try:
            outcome = self._source.extend(due, seconds=self.visibility_seconds)
        except (ClientError, BotoCoreError, DeltaworksError) as error:
            _LOGGER.warning("Could not keep %d messages invisible: %s", len(due), error)
            return 0
        with self._lock:
            for message in due:
                if message.receipt in self._held:
                    self._held[message.receipt] = (message, now)
        self.extended += outcome.done
        return outcome.done
