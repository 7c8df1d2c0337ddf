"""Resources of a query's planner: the state's log, object openers, and the relay that fills the log.

With a queue, the relay runs in a thread while the query runs, or until the queue is empty for `AvailableNow`. Without
a queue, it runs for one listing at a time, when no known file is left to read. Queries with the same state use one log:
the relay of one query holds the lease, and that of another takes over when the query ends.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace

from deltaworks.control.objects import open_objects
from deltaworks.errors import ConcurrencyError, ConfigError, DeltaworksError, FencedError, TransientError
from deltaworks.events.chunks import Payload
from deltaworks.sources.objects.file_event_log import FileEventLog
from deltaworks.sources.objects.payloads import FileOpener, FileReference
from deltaworks.sources.objects.relay.lister import is_listing_due, read_listing_record, request_listing
from deltaworks.sources.objects.relay.queue import NotificationQueue
from deltaworks.sources.objects.relay.relay import Relay
from deltaworks.sources.objects.slices import SlicePlanner
from deltaworks.sources.spark_formats.options import RELAY, FileQueryOptions
from deltaworks.tables.lake import Lake

#: An object to read, with its bucket.
LocatedFile = tuple[str, FileReference]
_LOGGER = logging.getLogger(__name__)
_PAUSE_SECONDS = 2.0
_DRAIN_SECONDS = 900.0
_EMPTY_CHECKS = 3
_STOP_SECONDS = 15.0
#: Minimum time between the listings of a running query, whose trigger may be shorter.
_LISTING_SECONDS = 5.0


def open_log(options: FileQueryOptions) -> tuple[FileEventLog, SlicePlanner]:
    """Opens the state's log and the planner of the slices that this query reads.

    Raises:
        ConfigError: STATE_OF_ANOTHER_QUEUE.
    """
    _check_input(options)
    log, source = FileEventLog(Lake(options.state), RELAY), options.source
    bucket = None if options.any_bucket else source.bucket
    return log, SlicePlanner(log, bucket=bucket, prefix=source.prefix, glob=source.glob)


def list_slice(slices: SlicePlanner, start: int, end: int) -> list[tuple[LocatedFile, int]]:
    """Returns the objects of a slice and their sizes in bytes."""
    return [
        ((row["bucket"], FileReference(row["seq"], row["key"], row["etag"], row["version_id"])), row["size"] or 0)
        for row in slices.rows(start, end).to_pylist()
    ]


class ObjectOpener:
    """Opens objects of any bucket that the query reads. Not thread-safe.

    A query that reads each name once accepts any content: that of a file overwritten before it is read, which has
    another ETag, would never be read otherwise.
    """

    def __init__(self, options: FileQueryOptions) -> None:
        self._options = options
        self._openers: dict[str, FileOpener] = {}

    def __call__(self, file: LocatedFile) -> Payload:
        bucket, reference = file
        if self._options.reads_each_name_once:
            reference = replace(reference, etag="")
        if bucket not in self._openers:
            source, landing = self._options.source, self._options.landing(bucket)
            self._openers[bucket] = FileOpener(
                landing, compression=source.compression, max_object_bytes=source.max_object_bytes
            )
        return self._openers[bucket](reference)


def _reraise_unless_unowned(error: DeltaworksError) -> None:
    """Raises an error of the storage again. Another owner, or a lease that expired, only ends this run of the relay."""
    if isinstance(error, TransientError) and error.condition != "LEASE_EXPIRED":
        raise error


def _check_input(options: FileQueryOptions) -> None:
    """Rejects a state that was created for another queue or path, because its log would mix the files of both."""
    objects = open_objects(options.state)
    if objects.put_if_absent("input", options.input.encode()):
        return
    stored = objects.get("input")
    raise ConfigError(
        "STATE_OF_ANOTHER_QUEUE", f"{options.state.root} is the state of {stored.data.decode() if stored else '?'}."
    )


class QueryRelay:
    """Runs the relay of one query in the driver's planner process."""

    def __init__(self, options: FileQueryOptions) -> None:
        self._options = options
        self._relay: Relay | None = None
        self._is_stopped = threading.Event()
        self._failure: ConfigError | None = None
        self._thread: threading.Thread | None = None
        self._listed_at: float | None = None

    def ensure_running(self) -> None:
        """Starts the relay thread if it is not running and there is a queue.

        Raises:
            ConfigError: the thread found the queue or the state unusable.
        """
        if self._failure is not None:
            raise self._failure
        if self._thread is None and self._options.queue_url is not None:
            self._thread = threading.Thread(target=self._run_relay, name="relay", daemon=True)
            self._thread.start()

    def list_files(self) -> bool:
        """Lists the files of a query without a queue, unless the last listing was just before. Returns whether it did.

        Raises:
            ConfigError: the path or the state is unusable.
        """
        is_recent = self._listed_at is not None and time.monotonic() < self._listed_at + _LISTING_SECONDS
        if self._options.queue_url is not None or is_recent:
            return False
        # A query with the same state may be listing: its files are found in the log then.
        try:
            self._run_until_drained(lease_wait_seconds=0.0)
        except (ConcurrencyError, FencedError, TransientError) as error:
            _reraise_unless_unowned(error)
        self._listed_at = time.monotonic()
        return True

    def drain(self) -> None:
        """Runs the relay until the queue is empty, or all files are listed, then releases the lease.

        Raises:
            ConfigError: the queue or the state is unusable.
            TransientError: QUEUE_NOT_DRAINED, another query's relay has not emptied the queue in time.
        """
        deadline = time.monotonic() + _DRAIN_SECONDS
        lease_wait_seconds = 0.0
        while time.monotonic() < deadline:
            try:
                self._run_until_drained(lease_wait_seconds=lease_wait_seconds)
                return
            except (ConcurrencyError, FencedError, TransientError) as error:
                _reraise_unless_unowned(error)
                # Another query relays into the same log; once the queue is empty, all messages were processed.
                if self._options.queue_url is not None and self._is_queue_empty():
                    return
                # A killed relay holds the lease until it expires; a running one makes progress meanwhile.
                lease_wait_seconds = self._options.relay.lease_ttl_seconds * 1.5
        raise TransientError(
            "QUEUE_NOT_DRAINED",
            f"Another query relays {self._options.input} and has not emptied it within {_DRAIN_SECONDS:.0f} s.",
        )

    def _run_until_drained(self, *, lease_wait_seconds: float) -> None:
        options, relay = self._options, self._options.relay
        objects = open_objects(options.state)
        if options.keys_grow:
            request_listing(objects, relay.relay, by="the query")
        elif relay.listing is not None and not is_listing_due(read_listing_record(objects, relay.relay), relay.listing):
            # A draining relay waits for the end of a listing, which would not begin.
            relay = relay.model_copy(update={"listing": None})
        Relay(
            relay,
            lake=options.state,
            queue=self._open_queue(),
            landing=options.landing(options.source.bucket),
            lease_wait_seconds=lease_wait_seconds,
            until_drained=True,
            keys_grow=options.keys_grow,
        ).run()

    def _is_queue_empty(self) -> bool:
        """Returns whether several checks in a row find the queue empty, because SQS counts are approximate."""
        queue = self._open_queue()
        for attempt in range(_EMPTY_CHECKS):
            if attempt:
                time.sleep(1.0)
            if queue is not None and queue.approximate_counts() != (0, 0):
                return False
        return True

    def stop(self) -> None:
        """Ends the relay thread. Messages it holds are returned to the queue."""
        self._is_stopped.set()
        if self._relay is not None:
            self._relay.stop(immediately=True)
        if self._thread is not None:
            self._thread.join(timeout=_STOP_SECONDS)

    def _open_queue(self) -> NotificationQueue | None:
        if self._options.queue_url is None:
            return None
        return NotificationQueue(
            self._options.messaging,
            self._options.queue_url,
            wait_seconds=1,
            visibility_seconds=self._options.relay.visibility_seconds,
        )

    def _run_relay(self) -> None:
        while not self._is_stopped.is_set():
            try:
                self._relay = Relay(
                    self._options.relay,
                    lake=self._options.state,
                    queue=self._open_queue(),
                    landing=self._options.landing(self._options.source.bucket),
                )
                self._relay.run()
            except ConfigError as error:
                self._failure = error
                return
            except (DeltaworksError, OSError) as error:
                _LOGGER.warning(
                    "The state %s is relayed by another query, or is temporarily unavailable: %s",
                    self._options.state,
                    error,
                )
            self._is_stopped.wait(_PAUSE_SECONDS)
