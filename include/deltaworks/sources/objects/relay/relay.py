"""The relay: appends file events from a notification queue and from listings to the file event log, each once.

One thread appends. A message is deleted only after the append with its events is committed, so after a crash messages
are redelivered and the log skips the events it has. A lease ensures that one relay runs at a time. If a relay was
paused for longer than its lease, the owner epoch in every commit fences it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime

from deltaworks.control import paths
from deltaworks.control.clock import iso_now, utc_now
from deltaworks.control.leased_process import LeasedProcess
from deltaworks.control.locks.lease import Lease
from deltaworks.control.objects import open_objects
from deltaworks.control.records.reprocess import Replacements
from deltaworks.errors import ConfigError, DeltaworksError, TransientError
from deltaworks.sources.objects.file_event_log_writer import (
    FileEventLogWriter,
    PendingAppend,
    QuarantinedMessage,
    ReceivedEvent,
    last_log_epoch,
)
from deltaworks.sources.objects.relay.intake import Intake
from deltaworks.sources.objects.relay.lister import ListedPage, Lister
from deltaworks.sources.objects.relay.messages import FileEvent, parse_message
from deltaworks.sources.objects.relay.queue import MAX_BATCH_MESSAGES, Message, NotificationQueue, queue_warnings
from deltaworks.sources.outages import is_outage, retry_outages
from deltaworks.specs.relay import Overwrites, RelaySpec
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.lake import Lake

_LOG_RETRY_SECONDS = 300.0
#: Maximum number of lost objects named in a report.
MAX_EXAMPLES = 10


@dataclass(slots=True)
class RelayCounts:
    """Counters of a relay since its start.

    - `redelivered`: messages that had been delivered before.
    - `expired_receipts`, `extend_expired`: messages that could not be deleted or extended because their receipt had
      expired.
    - `saturated`: receives that SQS refused because too many messages were in flight.
    - `lost`: listed objects that were never announced.
    """

    messages: int = 0
    events: int = 0
    duplicates: int = 0
    quarantined: int = 0
    appends: int = 0
    deleted: int = 0
    expired_receipts: int = 0
    delete_failed: int = 0
    redelivered: int = 0
    extended: int = 0
    extend_expired: int = 0
    saturated: int = 0
    listed: int = 0
    lost: int = 0
    ignored: Counter[str] = field(default_factory=Counter)


class Appender:
    """Appends to an open file event log. Not thread-safe."""

    def __init__(
        self,
        spec: RelaySpec,
        writer: FileEventLogWriter,
        counts: RelayCounts,
        *,
        deleters: ThreadPoolExecutor,
        cancelled: threading.Event,
        replacements: Replacements,
    ) -> None:
        self._spec = spec
        self._writer = writer
        self._counts = counts
        self._deleters = deleters
        self._cancelled = cancelled
        self._replacements = replacements

    @property
    def append_number(self) -> int:
        """The number of the last append."""
        return self._writer.append_number

    def append_messages(self, messages: Sequence[Message], queue: NotificationQueue, intake: Intake) -> None:
        """Appends the file events of the messages, then deletes the messages.

        A message about an object that an erasure may have rewritten stays in the queue until the new ETag is recorded.
        """
        self._reload_rewritten_objects()
        events, quarantined, deferred = self._parse(messages)
        self._append(events, quarantined)
        self._counts.messages += len(messages)
        if deferred:
            deferred_ids = {id(message) for message in deferred}
            intake.release(deferred)
            messages = [message for message in messages if id(message) not in deferred_ids]
        batches = [
            messages[start : start + MAX_BATCH_MESSAGES] for start in range(0, len(messages), MAX_BATCH_MESSAGES)
        ]
        for outcome in self._deleters.map(queue.delete, batches):
            self._counts.deleted += outcome.succeeded
            self._counts.expired_receipts += outcome.expired
            self._counts.delete_failed += outcome.failed
        intake.release(messages)

    def append_page(self, page: ListedPage) -> tuple[int, list[str]]:
        """Appends the listed objects that the log lacks. Returns their number, and the keys of those that were never
        announced.
        """
        now = utc_now()
        self._reload_rewritten_objects()
        events = [event for event in page.events if not self._may_be_replacement(event)]
        pending = self._append([ReceivedEvent(event, "", now, "listing") for event in events])
        lost = _older_than(pending, page.lost_before)
        self._counts.listed += len(page.events)
        self._counts.lost += len(lost)
        return pending.events.num_rows, lost

    def _reload_rewritten_objects(self) -> None:
        retry_outages(self._replacements.refresh, retry_seconds=_LOG_RETRY_SECONDS, cancelled=self._cancelled)

    def _may_be_replacement(self, event: FileEvent) -> bool:
        return self._replacements.may_be_replacement(event.bucket, event.key, event.etag)

    def _with_original_identity(self, received: ReceivedEvent) -> ReceivedEvent:
        """Returns the event with the ETag of the original object, if an erasure rewrote the object."""
        event = received.event
        original = self._replacements.original(event.bucket, event.key, event.etag)
        if original is None:
            return received
        landed = replace(event, etag=original.etag, version_id=original.version_id)
        return replace(received, event=landed)

    def _parse(
        self, messages: Sequence[Message]
    ) -> tuple[list[ReceivedEvent], list[QuarantinedMessage], list[Message]]:
        events: list[ReceivedEvent] = []
        deferred: list[Message] = []
        quarantined: list[QuarantinedMessage] = []
        for message in messages:
            parsed = parse_message(message.body, buckets=self._spec.buckets)
            if any(map(self._may_be_replacement, parsed.events)):
                deferred.append(message)
                continue
            events += (ReceivedEvent(event, message.message_id, message.received_at) for event in parsed.events)
            self._counts.ignored.update(parsed.ignored)
            if parsed.problems:
                quarantined.append(
                    QuarantinedMessage(message.message_id, message.body, parsed.reason, message.received_at)
                )
        return events, quarantined, deferred

    def _append(self, events: Sequence[ReceivedEvent], messages: Sequence[QuarantinedMessage] = ()) -> PendingAppend:
        pending = self._writer.prepare([self._with_original_identity(event) for event in events], messages)
        retry_outages(lambda: self._writer.commit(pending), retry_seconds=_LOG_RETRY_SECONDS, cancelled=self._cancelled)
        self._counts.events += pending.events.num_rows
        self._counts.duplicates += pending.duplicates
        self._counts.quarantined += pending.messages.num_rows
        self._counts.appends += not pending.is_empty
        return pending


def _older_than(pending: PendingAppend, cutoff: datetime | None) -> list[str]:
    if cutoff is None:
        return []
    rows = zip(*(pending.events.column(name).to_pylist() for name in ("bucket", "key", "event_time")), strict=True)
    return [f"{bucket}/{key}" for bucket, key, at in rows if at < cutoff]


_LOGGER = logging.getLogger(__name__)
_BACKLOG_POLL_SECONDS = 10.0
#: Maximum wait of a draining relay for messages in flight. Those of a killed relay return after the visibility timeout.
_MAX_IN_FLIGHT_WAIT_SECONDS = 300.0

LogOpener = Callable[[Lake, str, int], FileEventLogWriter]


def log_opener(overwrites: Overwrites) -> LogOpener:
    """Returns a function that opens a log for writing under an owner epoch."""

    def writer(lake: Lake, relay: str, epoch: int) -> FileEventLogWriter:
        return FileEventLogWriter(lake, relay, epoch=epoch, overwrites=overwrites)

    return writer


class Relay:
    """One run of a relay. `run` returns at the run limit or after a stop request, and raises on failure.

    Args:
        queue: the queue of the spec's `queue_url`; None for a relay that only lists.
        landing: access to the buckets, for a relay that lists; on local disk the folder that represents the bucket.
        open_log: opens the log under an owner epoch.
        lease_wait_seconds: how long to wait for another relay's lease; by default 1.5 times its time to live.
        until_drained: end once the queue is empty and, for a relay that lists, a pass is complete.
        keys_grow: as in `Lister`.
        on_tick: called every few seconds while the relay works or waits; the caller detects a stall by its absence.
    """

    def __init__(
        self,
        spec: RelaySpec,
        *,
        lake: StorageSpec,
        queue: NotificationQueue | None,
        landing: StorageSpec | None = None,
        open_log: LogOpener | None = None,
        lease_wait_seconds: float | None = None,
        until_drained: bool = False,
        keys_grow: bool = False,
        on_tick: Callable[[], None] = lambda: None,
    ) -> None:
        if spec.listing is not None and landing is None:
            raise ConfigError(
                "LANDING_MISSING",
                f"Relay {spec.relay!r} lists its buckets, but the environment has no `landing` to access them.",
            )
        self._spec = spec
        self._lake = lake
        self._queue = queue
        self._landing = landing
        self._open_log = open_log or log_opener(spec.overwrites)
        self._lease_wait = lease_wait_seconds
        self._until_drained = until_drained
        self._keys_grow = keys_grow
        self._on_tick = on_tick
        self._objects = open_objects(lake)
        self._process = LeasedProcess(
            self._objects,
            paths.relay_control(spec.relay),
            name=spec.relay,
            ttl_seconds=spec.lease_ttl_seconds,
            max_run_seconds=spec.max_run_seconds,
            trigger_seconds=spec.append_seconds,
            known_epoch=lambda: last_log_epoch(Lake(lake), spec.relay),
        )
        self._stop, self._heartbeat = self._process.stopping, self._process.heartbeat
        self._immediate_stop_requested = False
        self._dead_letter_queue: NotificationQueue | None = None
        self._next_poll_at: float | None = None
        self._intake: Intake | None = None
        self._lister: Lister | None = None
        self.counts = RelayCounts()

    def stop(self, *, immediately: bool = False) -> None:
        """Requests the end of the run. Held messages are appended first or, if `immediately`, returned to the queue.
        May be called from a signal handler.
        """
        self._immediate_stop_requested = self._immediate_stop_requested or immediately
        self._process.stop()

    @property
    def _should_stop_immediately(self) -> bool:
        return self._immediate_stop_requested or not self._process.holds_lease

    def run(self) -> RelayCounts:
        """Runs the relay until its run limit, a stop request or an error.

        Raises:
            ConcurrencyError: LEASE_HELD, another relay is running.
            FencedError: LEASE_LOST or OWNER_FENCED, a successor has taken over.
            ConfigError: the queue, a bucket or a table is unusable.
        """
        with self._process.hold_lease(
            on_tick=self._report_queue, wait_seconds=self._lease_wait, state="starting"
        ) as lease:
            try:
                self._run_under(lease)
            except Exception as error:
                raise self._translate_error(error) from error
        return self.counts

    def _run_under(self, lease: Lease) -> None:
        writer = retry_outages(
            lambda: self._open_log(Lake(self._lake), self._spec.relay, lease.epoch),
            retry_seconds=_LOG_RETRY_SECONDS,
            cancelled=self._stop,
        )
        self._open_inputs()
        with ThreadPoolExecutor(max_workers=self._spec.receive_threads + 2) as deleters:
            appender = Appender(
                self._spec,
                writer,
                self.counts,
                deleters=deleters,
                cancelled=self._stop,
                replacements=Replacements(self._objects),
            )
            for input in (self._intake, self._lister):
                if input is not None:
                    input.start()
            try:
                self._append_until_end(appender)
                if not self._should_stop_immediately and self._intake is not None and self._queue is not None:
                    remaining = self._intake.close(join_seconds=10)
                    if remaining:
                        appender.append_messages(remaining, self._queue, self._intake)
                        self._report_progress(appender)
            finally:
                self._process.stop()
                self._close_inputs()

    def _open_inputs(self) -> None:
        spec = self._spec
        if self._queue is not None:
            self._intake = Intake(self._queue, threads=spec.receive_threads, max_in_flight=spec.max_in_flight)
        if spec.listing is not None and self._landing is not None:
            backlog = self._queue.approximate_backlog if self._queue is not None else None
            self._lister = Lister(
                spec,
                spec.listing,
                self._landing,
                self._objects,
                queue_backlog=backlog,
                max_examples=MAX_EXAMPLES,
                keys_grow=self._keys_grow,
            )

    def _close_inputs(self) -> None:
        if self._lister is not None:
            self._lister.close()
        if self._intake is None:
            return
        # Return unprocessed messages immediately, for the next relay.
        self._intake.close(join_seconds=0)
        self._intake.return_held()

    def _append_until_end(self, appender: Appender) -> None:
        self._heartbeat.update(state="idle")
        while not self._process.should_stop:
            self._on_tick()
            is_busy = self._append_messages(appender)
            is_busy = self._append_page(appender) or is_busy
            if is_busy:
                self._report_progress(appender)
            elif self._heartbeat.current.state != "idle":
                self._heartbeat.update(state="idle")
            if not is_busy and self._until_drained and self._is_drained():
                return

    def _append_messages(self, appender: Appender) -> bool:
        if self._intake is None or self._queue is None:
            return False
        timeout = min(self._spec.append_seconds, self._intake.visibility_seconds / 4)
        if self._lister is not None and self._lister.has_page:
            timeout = 0.0
        messages = self._intake.collect(
            max_messages=self._spec.max_events_per_append, timeout_seconds=timeout, wake=self._stop
        )
        if not messages or self._should_stop_immediately:
            return False
        appender.append_messages(messages, self._queue, self._intake)
        return True

    def _append_page(self, appender: Appender) -> bool:
        if self._lister is None or self._should_stop_immediately:
            return False
        page = self._lister.next_page(timeout_seconds=0.0 if self._intake is not None else 0.2)
        if page is None:
            return False
        self._lister.record_append(page, *appender.append_page(page))
        return True

    def _is_drained(self) -> bool:
        """Returns whether all input was processed. One empty receive does not prove that the queue is empty."""
        if self._lister is not None and not self._lister.passes:
            return False
        if self._intake is None or self._queue is None:
            return True
        if self._intake.held_messages() or self._intake.empty_receives < 2 * self._spec.receive_threads:
            return False
        waiting, in_flight = self._queue.approximate_counts()
        max_wait_seconds = min(self._intake.visibility_seconds + 10.0, _MAX_IN_FLIGHT_WAIT_SECONDS)
        return not waiting and (not in_flight or self._intake.idle_seconds > max_wait_seconds)

    def _report_progress(self, appender: Appender) -> None:
        counts, intake = self.counts, self._intake
        if intake is not None:
            counts.extended, counts.extend_expired = intake.extended, intake.extend_expired
            counts.saturated, counts.redelivered = intake.saturated, intake.redelivered
        self._heartbeat.update(
            state="running",
            batch_id=appender.append_number,
            last_batch_at=iso_now(),
            rows=counts.events,
            quarantined=counts.quarantined,
        )

    def _report_queue(self) -> None:
        """Reads the queue's counts at intervals, independently of appends, and adds them to the heartbeat."""
        if self._next_poll_at is None:
            self._next_poll_at = 0.0
            with contextlib.suppress(Exception):  # without permission, the queue is not monitored
                self._dead_letter_queue = self._queue.dead_letter_queue() if self._queue is not None else None
                for warning in queue_warnings(self._queue) if self._queue is not None else ():
                    _LOGGER.warning("relay=%s %s", self._spec.relay, warning)
        if time.monotonic() >= self._next_poll_at:
            self._next_poll_at = time.monotonic() + _BACKLOG_POLL_SECONDS
            self._heartbeat.update(**self._queue_fields())

    def _queue_fields(self) -> dict[str, object]:
        fields: dict[str, object] = {}
        if self._lister is not None:
            record = self._lister.record
            fields |= {"lost_files": record.lost, "lost_examples": record.lost_examples}
        if self._queue is not None:
            fields["backlog_files"] = self._queue.approximate_backlog()
            fields["retention_seconds"] = float(self._queue.retention_seconds())
        if self._dead_letter_queue is not None:
            fields["dead_letters"] = self._dead_letter_queue.approximate_backlog()
        return fields

    def _translate_error(self, error: Exception) -> Exception:
        """Converts an outage into a retryable error; returns other errors unchanged."""
        if is_outage(error) and not isinstance(error, DeltaworksError):
            return TransientError(
                "RELAY_OUTAGE", f"Relay {self._spec.relay!r} could not reach its queue or its log: {error}."
            )
        return error
