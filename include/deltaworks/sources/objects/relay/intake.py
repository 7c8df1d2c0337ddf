"""Receives queue messages for a relay: receiver threads, a bounded buffer, and a thread that extends visibility
timeouts.

The number of held messages is bounded, so the intake stops receiving while the log cannot be written. A message is held
from its receipt until `release`. After half the visibility timeout its timeout is extended. Therefore an outage of the
log's storage neither repeats work nor moves messages to the dead-letter queue. A message whose receipt expired is
redelivered, and the log skips its events.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import random
import threading
import time
from collections.abc import Iterable, Sequence

from botocore.exceptions import BotoCoreError, ClientError

from deltaworks.errors import DeltaworksError
from deltaworks.sources.objects.relay.queue import MAX_BATCH_MESSAGES, OVER_LIMIT_CODE, Message, NotificationQueue
from deltaworks.sources.outages import error_code, retry_outages

_LOGGER = logging.getLogger(__name__)
_OVER_LIMIT_PAUSE_SECONDS = 2.0


class Intake:
    """Receives from a queue with several threads until closed. `collect` and `release` must be called by one thread.

    Args:
        max_in_flight: maximum number of held messages, including collected ones that are not released. A receive
            returns up to ten, so at least ten are kept free.
        retry_seconds: how long the queue may fail before the intake fails.
    """

    def __init__(
        self,
        source: NotificationQueue,
        *,
        threads: int,
        max_in_flight: int,
        retry_seconds: float = 120.0,
    ) -> None:
        self._source = source
        self._buffer: queue.Queue[list[Message]] = queue.Queue()
        self._max_in_flight = max(MAX_BATCH_MESSAGES, max_in_flight)
        self._receiving = 0
        self._retry_seconds = retry_seconds
        self._closed = threading.Event()
        self._returned = threading.Event()
        self._failure: BaseException | None = None
        self._held: dict[str, tuple[Message, float]] = {}
        self._lock = threading.Lock()
        self._capacity = threading.Condition(self._lock)
        self.visibility_seconds = source.visibility_seconds()
        self.extended = self.extend_expired = self.saturated = self.redelivered = 0
        #: Consecutive empty receives, over all threads.
        self.empty_receives = 0
        self._last_received = time.monotonic()
        self._receivers = [
            threading.Thread(target=self._receive, name=f"receive-{number}", daemon=True) for number in range(threads)
        ]
        self._extender = threading.Thread(target=self._extend_periodically, name="visibility", daemon=True)

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last received message."""
        return time.monotonic() - self._last_received

    def start(self) -> None:
        """Starts the receiver threads and the thread that extends visibility timeouts."""
        for thread in (*self._receivers, self._extender):
            thread.start()

    def collect(self, *, max_messages: int, timeout_seconds: float, wake: threading.Event) -> list[Message]:
        """Returns messages once `max_messages` are buffered, or the oldest was buffered for `timeout_seconds`.

        Returns none if `wake` is set or the time passes.

        Raises:
            ConfigError, ClientError, BotoCoreError: the error that ended a receiver thread.
        """
        messages: list[Message] = []
        deadline = time.monotonic() + timeout_seconds
        while len(messages) < max_messages and not wake.is_set():
            if self._failure is not None:
                raise self._failure
            # After the timeout an append still takes all buffered messages; small appends would let the buffer age.
            remaining = max(0.0, deadline - time.monotonic())
            try:
                received = self._buffer.get(timeout=min(remaining, 0.2)) if remaining else self._buffer.get_nowait()
            except queue.Empty:
                if remaining:
                    continue
                break
            if not messages:
                deadline = min(message.held_since for message in received) + timeout_seconds
            messages += received
        return messages

    def release(self, messages: Iterable[Message]) -> None:
        """Stops extending the visibility timeout of these messages, for example after they were deleted."""
        with self._capacity:
            for message in messages:
                self._held.pop(message.receipt, None)
            self._capacity.notify_all()

    def close(self, *, join_seconds: float) -> list[Message]:
        """Stops receiving. Returns the buffered messages once the threads have ended or `join_seconds` have passed."""
        self._closed.set()
        remaining: list[Message] = []
        deadline = time.monotonic() + join_seconds
        while True:
            remaining += self._drain()
            if not any(thread.is_alive() for thread in self._receivers) or time.monotonic() >= deadline:
                return remaining + self._drain()
            time.sleep(0.02)

    def held_messages(self) -> list[Message]:
        """Returns all messages that were received and not released yet."""
        with self._lock:
            return [message for message, _ in self._held.values()]

    def return_held(self) -> None:
        """Makes all held messages visible to the next relay at once. A receive that is on its way when the intake is
        closed returns its own. Failures are ignored: such messages are redelivered after the visibility timeout.
        """
        self._returned.set()
        with self._lock:
            held = [message for message, _ in self._held.values()]
            self._held.clear()
        if held:
            with contextlib.suppress(ClientError, BotoCoreError, DeltaworksError):
                self._source.return_messages(held)

    def _drain(self) -> list[Message]:
        messages: list[Message] = []
        while True:
            try:
                messages += self._buffer.get_nowait()
            except queue.Empty:
                return messages

    def _receive(self) -> None:
        try:
            while not self._closed.is_set():
                if not self._reserve_receive():
                    continue
                messages: list[Message] = []
                try:
                    messages = retry_outages(
                        self._receive_once, retry_seconds=self._retry_seconds, cancelled=self._closed
                    )
                finally:
                    self._buffer_messages(messages)
        except (ClientError, BotoCoreError, DeltaworksError) as error:
            self._failure = error

    def _receive_once(self) -> list[Message]:
        try:
            return self._source.receive()
        except ClientError as error:
            if error_code(error) != OVER_LIMIT_CODE:
                raise
        # Too many messages are in flight, possibly at other consumers. The queue itself is healthy.
        self.saturated += 1
        self._closed.wait(random.uniform(0.5, 1) * _OVER_LIMIT_PAUSE_SECONDS)
        return []

    def _reserve_receive(self) -> bool:
        """Reserves capacity for one receive; waits briefly and returns False without capacity."""
        with self._capacity:
            if len(self._held) + MAX_BATCH_MESSAGES * (self._receiving + 1) > self._max_in_flight:
                self._capacity.wait(timeout=0.2)
                return False
            self._receiving += 1
            return True

    def _buffer_messages(self, messages: Sequence[Message]) -> None:
        with self._lock:
            self._receiving -= 1
            self.empty_receives = 0 if messages else self.empty_receives + 1
            if messages:
                self._last_received = time.monotonic()
            self._held.update({message.receipt: (message, message.held_since) for message in messages})
            self.redelivered += sum(message.deliveries > 1 for message in messages)
        if messages:
            self._buffer.put(list(messages))
        if self._returned.is_set():
            self.return_held()

    def _extend_periodically(self) -> None:
        pause = min(1.0, self.visibility_seconds / 8)
        while not self._closed.wait(pause):
            self.extend_visibility()

    def extend_visibility(self) -> int:
        """Extends messages that were held for at least half the visibility timeout; returns their number."""
        now = time.monotonic()
        with self._lock:
            half_expired = [m for m, since in self._held.values() if now - since >= self.visibility_seconds / 2]
        if not half_expired:
            return 0
        try:
            outcome = self._source.extend(half_expired, seconds=self.visibility_seconds)
        except (ClientError, BotoCoreError, DeltaworksError) as error:
            _LOGGER.warning("Could not extend the visibility of %d messages: %s", len(half_expired), error)
            return 0
        expired = frozenset(outcome.expired_receipts)
        with self._capacity:
            for message in half_expired:
                if message.receipt in expired:
                    self._held.pop(message.receipt, None)
                elif message.receipt in self._held and not outcome.failed:
                    self._held[message.receipt] = (message, now)
            self._capacity.notify_all()
        self.extended += outcome.succeeded
        self.extend_expired += outcome.expired
        return outcome.succeeded
