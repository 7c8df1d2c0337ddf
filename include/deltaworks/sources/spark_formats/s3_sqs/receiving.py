"""Runs the relay inside a query: in a thread while it runs, or to the bottom of the queue for `AvailableNow`.

Queries that share a state share its log: one of them relays, by lease, and another takes over when it ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from deltaworks.errors import ConcurrencyError, ConfigError, DeltaworksError, FencedError, TransientError
from deltaworks.sources.objects.relay.queue import NotificationQueue
from deltaworks.sources.objects.relay.relay import Relay
from deltaworks.sources.spark_formats.s3_sqs.options import S3SqsOptions
from deltaworks.specs.base import resolve_text

_LOGGER = logging.getLogger(__name__)
_PAUSE_SECONDS = 2.0
_DRAIN_SECONDS = 900.0
_EMPTY_LOOKS = 3
_LOOK_AHEAD_SECONDS = 60.0
_LOOK_SECONDS = 0.5
_STOP_SECONDS = 15.0


class Receiving:
    """Moves what is announced into the state's log. One per query, in the driver's planner process."""

    def __init__(self, options: S3SqsOptions) -> None:
        self._options = options
        self._relay: Relay | None = None
        self._ended = threading.Event()
        self._failure: ConfigError | None = None
        self._thread: threading.Thread | None = None

    def keep_on(self) -> None:
        """Relay from now on, in a thread.

        Raises:
            ConfigError: the queue or the state cannot be used; found by the thread since the last call.
        """
        if self._failure is not None:
            raise self._failure
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_on, name="relay", daemon=True)
            self._thread.start()

    def keep_on_until(self, enough: Callable[[], bool], *, seconds: float = _LOOK_AHEAD_SECONDS) -> None:
        """Relay until there is enough in the log, the queue is empty, or time is over; `stop` has to follow.

        Raises:
            ConfigError: the queue or the state cannot be used.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.keep_on()
            # The order matters: what was announced before the queue is seen to be empty is in the log then.
            empty = self._stays_empty()
            if enough() or empty:
                return
            time.sleep(_LOOK_SECONDS)

    def drain(self) -> None:
        """Relay until the queue is empty, then let go of the lease.

        Raises:
            ConfigError: the queue or the state cannot be used.
            TransientError: QUEUE_NOT_DRAINED, another query relays and does not come to an end.
        """
        deadline = time.monotonic() + _DRAIN_SECONDS
        lease_wait_seconds = 0.0
        while time.monotonic() < deadline:
            try:
                Relay(
                    self._options.relay,
                    lake=self._options.state,
                    queue=self._queue(),
                    lease_wait_seconds=lease_wait_seconds,
                    until_drained=True,
                ).run()
                return
            except (ConcurrencyError, FencedError):
                # Another query relays into the same log: once the queue is empty it has taken all there was.
                if self._stays_empty():
                    return
                # One that was killed still holds the lease, and is outlasted; one that lives works on meanwhile.
                lease_wait_seconds = self._options.relay.lease_ttl_seconds * 1.5
        raise TransientError(
            "QUEUE_NOT_DRAINED",
            f"Another query relays {self._options.relay.queue_url} and has not emptied it in {_DRAIN_SECONDS:.0f} s.",
            hint="Start it again later; or give this query a queue of its own.",
        )

    def _stays_empty(self) -> bool:
        """Whether the queue is empty, however often it is asked: its counts are approximate."""
        queue = self._queue()
        for look in range(_EMPTY_LOOKS):
            if look:
                time.sleep(1.0)
            if queue.approximate_counts() != (0, 0):
                return False
        return True

    def stop(self, *, at_once: bool = True) -> None:
        """End the thread, which gives back what it holds; or, not `at_once`, waits for what is on its way first."""
        self._ended.set()
        if self._relay is not None:
            self._relay.stop(at_once=at_once)
        if self._thread is not None:
            self._thread.join(timeout=_STOP_SECONDS)

    def _queue(self) -> NotificationQueue:
        spec = self._options.relay
        assert spec.queue_url is not None
        return NotificationQueue(
            self._options.messaging,
            resolve_text(spec.queue_url),
            wait_seconds=1,
            visibility_seconds=spec.visibility_seconds,
        )

    def _keep_on(self) -> None:
        while not self._ended.is_set():
            try:
                self._relay = Relay(self._options.relay, lake=self._options.state, queue=self._queue())
                self._relay.run()
            except ConfigError as error:
                self._failure = error
                return
            except (DeltaworksError, OSError) as error:
                _LOGGER.warning("%s is relayed by another query, or cannot be just now: %s", self._options.state, error)
            self._ended.wait(_PAUSE_SECONDS)
