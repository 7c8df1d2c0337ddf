"""What a query holds open where it plans: the state's log, its objects' openers, and the relay that fills the log.

The relay runs in a thread while the query runs, or to the bottom of the queue for `AvailableNow`. Queries that share a
state share its log: one of them relays, by lease, and another takes over when it ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from deltaworks.control.objects import open_objects
from deltaworks.errors import ConcurrencyError, ConfigError, DeltaworksError, FencedError, TransientError
from deltaworks.events.parse import Payload
from deltaworks.sources.objects.file_event_log import FileEventLog
from deltaworks.sources.objects.payloads import FileOpener, FileReference
from deltaworks.sources.objects.relay.queue import NotificationQueue
from deltaworks.sources.objects.relay.relay import Relay
from deltaworks.sources.objects.slices import SlicePlanner
from deltaworks.sources.spark_formats.s3_sqs.options import RELAY, S3SqsOptions
from deltaworks.tables.lake import Lake

#: An object of a batch, in its bucket.
LocatedFile = tuple[str, FileReference]
_LOGGER = logging.getLogger(__name__)
_PAUSE_SECONDS = 2.0
_DRAIN_SECONDS = 900.0
_EMPTY_CHECKS = 3
_SAMPLE_WAIT_SECONDS = 60.0
_POLL_SECONDS = 0.5
_STOP_SECONDS = 15.0


def open_log(options: S3SqsOptions) -> tuple[FileEventLog, SlicePlanner]:
    """The log of the state, and the slices of it this query reads.

    Raises:
        ConfigError: STATE_OF_ANOTHER_QUEUE.
    """
    _check_queue(options)
    log, source = FileEventLog(Lake(options.state), RELAY), options.source
    bucket = None if options.any_bucket else source.bucket
    return log, SlicePlanner(log, bucket=bucket, prefix=source.prefix, glob=source.glob)


def list_slice(slices: SlicePlanner, start: int, end: int) -> list[tuple[LocatedFile, int]]:
    """The objects of a slice, each with its size."""
    return [
        ((row["bucket"], FileReference(row["seq"], row["key"], row["etag"], row["version_id"])), row["size"] or 0)
        for row in slices.rows(start, end).to_pylist()
    ]


class ObjectOpener:
    """Opens objects of any bucket the query reads. For one thread."""

    def __init__(self, options: S3SqsOptions) -> None:
        self._options = options
        self._openers: dict[str, FileOpener] = {}

    def __call__(self, where: LocatedFile) -> Payload:
        bucket, reference = where
        if bucket not in self._openers:
            source, landing = self._options.source, self._options.landing(bucket)
            self._openers[bucket] = FileOpener(
                landing, compression=source.compression, max_object_bytes=source.max_object_bytes
            )
        return self._openers[bucket](reference)


def _check_queue(options: S3SqsOptions) -> None:
    """Refuse a state that was begun for another queue: its log would mix the files of both."""
    named = str(options.relay.queue_url).encode()
    objects = open_objects(options.state)
    if objects.put_if_absent("queue_url", named):
        return
    queue = objects.get("queue_url")
    raise ConfigError(
        "STATE_OF_ANOTHER_QUEUE",
        f"{options.state.root} holds what was announced by {queue.data.decode() if queue else '?'}.",
        hint="Give this query a stateLocation of its own.",
    )


class QueryRelay:
    """Moves what is announced into the state's log. One per query, in the driver's planner process."""

    def __init__(self, options: S3SqsOptions) -> None:
        self._options = options
        self._relay: Relay | None = None
        self._is_stopped = threading.Event()
        self._failure: ConfigError | None = None
        self._thread: threading.Thread | None = None

    def ensure_running(self) -> None:
        """Relay from now on, in a thread.

        Raises:
            ConfigError: the queue or the state cannot be used; found by the thread since the last call.
        """
        if self._failure is not None:
            raise self._failure
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_relay, name="relay", daemon=True)
            self._thread.start()

    def run_until(self, has_enough: Callable[[], bool], *, seconds: float = _SAMPLE_WAIT_SECONDS) -> None:
        """Relay until there is enough in the log, the queue is empty, or time is over; `stop` has to follow.

        Raises:
            ConfigError: the queue or the state cannot be used.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.ensure_running()
            # The order matters: what was announced before the queue is seen to be empty is in the log then.
            empty = self._is_queue_empty()
            if has_enough() or empty:
                return
            time.sleep(_POLL_SECONDS)

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
                    queue=self._open_queue(),
                    lease_wait_seconds=lease_wait_seconds,
                    until_drained=True,
                ).run()
                return
            except (ConcurrencyError, FencedError):
                # Another query relays into the same log: once the queue is empty it has taken all there was.
                if self._is_queue_empty():
                    return
                # One that was killed still holds the lease, and is outlasted; one that lives works on meanwhile.
                lease_wait_seconds = self._options.relay.lease_ttl_seconds * 1.5
        raise TransientError(
            "QUEUE_NOT_DRAINED",
            f"Another query relays {self._options.relay.queue_url} and has not emptied it in {_DRAIN_SECONDS:.0f} s.",
            hint="Start it again later; or give this query a queue of its own.",
        )

    def _is_queue_empty(self) -> bool:
        """Whether the queue is empty, however often it is asked: its counts are approximate."""
        queue = self._open_queue()
        for look in range(_EMPTY_CHECKS):
            if look:
                time.sleep(1.0)
            if queue.approximate_counts() != (0, 0):
                return False
        return True

    def stop(self, *, immediately: bool = True) -> None:
        """End the thread, which gives back what it holds; or, not `at_once`, waits for what is on its way first."""
        self._is_stopped.set()
        if self._relay is not None:
            self._relay.stop(immediately=immediately)
        if self._thread is not None:
            self._thread.join(timeout=_STOP_SECONDS)

    def _open_queue(self) -> NotificationQueue:
        return NotificationQueue(
            self._options.messaging,
            self._options.queue_url,
            wait_seconds=1,
            visibility_seconds=self._options.relay.visibility_seconds,
        )

    def _run_relay(self) -> None:
        while not self._is_stopped.is_set():
            try:
                self._relay = Relay(self._options.relay, lake=self._options.state, queue=self._open_queue())
                self._relay.run()
            except ConfigError as error:
                self._failure = error
                return
            except (DeltaworksError, OSError) as error:
                _LOGGER.warning("%s is relayed by another query, or cannot be just now: %s", self._options.state, error)
            self._is_stopped.wait(_PAUSE_SECONDS)
