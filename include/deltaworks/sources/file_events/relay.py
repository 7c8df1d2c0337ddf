"""The relay: moves file events from a notification queue into the file event log, each once.

One thread appends. A message is deleted only after the append that holds its events has been committed, so a
crash anywhere brings messages back, and the log drops what it has. One relay runs at a time by lease; one
that was paused past its lease is fenced by the owner epoch in every commit.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from deltaworks.control.clock import iso_now
from deltaworks.control.heartbeat import HeartbeatWriter
from deltaworks.control.lease import Lease, watch
from deltaworks.control.objects import open_objects
from deltaworks.control.paths import relay_control
from deltaworks.control.stop import StopFlag
from deltaworks.errors import DeltaworksError, FencedError, TransientError
from deltaworks.sources.file_events.intake import Intake
from deltaworks.sources.file_events.log_writer import (
    FileEventLogWriter,
    PendingAppend,
    QuarantinedMessage,
    ReceivedEvent,
)
from deltaworks.sources.file_events.messages import parse_message
from deltaworks.sources.file_events.queue import BATCH, Message, NotificationQueue
from deltaworks.sources.outages import is_outage, through_outages
from deltaworks.specs.relay import RelaySpec
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.lake import Lake

_LOGGER = logging.getLogger(__name__)
_STOP_POLL_SECONDS = 2.0
_BACKLOG_POLL_SECONDS = 10.0
_LOG_PATIENCE_SECONDS = 300.0

LogOpener = Callable[[Lake, str, int], FileEventLogWriter]


def _open_log(lake: Lake, relay: str, epoch: int) -> FileEventLogWriter:
    return FileEventLogWriter(lake, relay, epoch=epoch)


@dataclass(slots=True)
class RelayCounts:
    """What a relay has done since it started."""

    messages: int = 0
    events: int = 0
    duplicates: int = 0
    quarantined: int = 0
    appends: int = 0
    deleted: int = 0
    delete_expired: int = 0
    delete_failed: int = 0
    ignored: Counter[str] = field(default_factory=Counter)


class Relay:
    """One run of a relay. `run` returns when its time is over or a stop is asked for, and raises on failure.

    Args:
        open_log: how the log is opened under an owner epoch. lease_wait_seconds: how long to wait for another
        relay's lease; by default its time to live and a half.
    """

    def __init__(
        self,
        spec: RelaySpec,
        *,
        lake: StorageSpec,
        queue: NotificationQueue,
        open_log: LogOpener = _open_log,
        lease_wait_seconds: float | None = None,
    ) -> None:
        self._spec = spec
        self._lake = lake
        self._queue = queue
        self._open_log = open_log
        self._lease_wait = spec.lease_ttl_seconds * 1.5 if lease_wait_seconds is None else lease_wait_seconds
        self._objects = open_objects(lake)
        self._stop = threading.Event()
        self._at_once = False
        self._fenced = False
        self.counts = RelayCounts()

    def stop(self, *, at_once: bool = False) -> None:
        """End soon: what is in hand is appended first or, `at_once`, given back to the queue. Callable from a
        signal handler."""
        self._at_once = self._at_once or at_once
        self._stop.set()

    def run(self) -> RelayCounts:
        """Relay until the end.

        Raises:
            ConcurrencyError: LEASE_HELD, another relay is running.
            FencedError: LEASE_LOST or OWNER_FENCED, a successor has taken over.
            ConfigError: the queue or a table cannot be used at all.
        """
        lease = Lease(
            self._objects,
            self._key("lease.json"),
            ttl_seconds=self._spec.lease_ttl_seconds,
            name=self._spec.relay,
        )
        lease.acquire(wait_seconds=self._lease_wait)
        try:
            watch(lease, self._on_lease_lost)
            with self._heartbeat(lease) as heartbeat:
                try:
                    self._relay_under(lease, heartbeat)
                except Exception as error:
                    raise self._verdict(error) from error
                if self._fenced:
                    raise self._lease_lost()
        finally:
            lease.release()
        return self.counts

    def _relay_under(self, lease: Lease, heartbeat: HeartbeatWriter) -> None:
        opened = through_outages(
            lambda: self._open_log(Lake(self._lake), self._spec.relay, lease.epoch),
            patience_seconds=_LOG_PATIENCE_SECONDS,
            give_up=self._stop,
        )
        intake = Intake(
            self._queue,
            threads=self._spec.receive_threads,
            capacity=2 * self._spec.max_events_per_append,
        )
        observer = threading.Thread(target=self._observe, args=(heartbeat,), name="observe", daemon=True)
        with ThreadPoolExecutor(max_workers=self._spec.receive_threads + 2) as deleters:
            intake.start()
            observer.start()
            try:
                self._append_until_end(opened, intake, heartbeat, deleters)
                if not self._at_once:
                    rest = intake.close(join_seconds=10)
                    self._handle(rest, opened, intake, heartbeat, deleters)
            finally:
                self._stop.set()
                self._return_held(intake)

    def _append_until_end(
        self,
        opened: FileEventLogWriter,
        intake: Intake,
        heartbeat: HeartbeatWriter,
        deleters: ThreadPoolExecutor,
    ) -> None:
        ends_at = time.monotonic() + self._spec.max_run_seconds
        within = min(self._spec.append_seconds, intake.visibility_seconds / 4)
        heartbeat.update(state="idle")
        while not self._stop.is_set() and time.monotonic() < ends_at:
            taken = intake.take(at_most=self._spec.max_events_per_append, within_seconds=within, wake=self._stop)
            if taken and not self._at_once:
                self._handle(taken, opened, intake, heartbeat, deleters)
            elif not taken and heartbeat.current.state != "idle":
                heartbeat.update(state="idle")

    def _handle(
        self,
        messages: Sequence[Message],
        opened: FileEventLogWriter,
        intake: Intake,
        heartbeat: HeartbeatWriter,
        deleters: ThreadPoolExecutor,
    ) -> None:
        """Append what the messages say, then delete them."""
        if not messages:
            return
        pending = opened.prepare(*self._parsed(messages))
        through_outages(
            lambda: opened.commit(pending),
            patience_seconds=_LOG_PATIENCE_SECONDS,
            give_up=self._stop,
        )
        self._count(messages, pending)
        heartbeat.update(
            state="running",
            batch_id=opened.number,
            last_batch_at=iso_now(),
            rows=self.counts.events,
            quarantined=self.counts.quarantined,
        )
        self._delete(messages, deleters)
        intake.done(messages)

    def _parsed(self, messages: Sequence[Message]) -> tuple[list[ReceivedEvent], list[QuarantinedMessage]]:
        events: list[ReceivedEvent] = []
        quarantined: list[QuarantinedMessage] = []
        for message in messages:
            parsed = parse_message(message.body, buckets=self._spec.buckets)
            events += (ReceivedEvent(event, message.message_id, message.received_at) for event in parsed.events)
            self.counts.ignored.update(parsed.ignored)
            if parsed.problems:
                quarantined.append(
                    QuarantinedMessage(message.message_id, message.body, parsed.reason, message.received_at)
                )
        return events, quarantined

    def _count(self, messages: Sequence[Message], pending: PendingAppend) -> None:
        self.counts.messages += len(messages)
        self.counts.events += pending.events.num_rows
        self.counts.duplicates += pending.duplicates
        self.counts.quarantined += pending.messages.num_rows
        self.counts.appends += not pending.is_empty

    def _delete(self, messages: Sequence[Message], deleters: ThreadPoolExecutor) -> None:
        batches = [messages[start : start + BATCH] for start in range(0, len(messages), BATCH)]
        for outcome in deleters.map(self._queue.delete, batches):
            self.counts.deleted += outcome.done
            self.counts.delete_expired += outcome.expired
            self.counts.delete_failed += outcome.failed

    def _return_held(self, intake: Intake) -> None:
        """Let the next relay have at once what this one did not handle."""
        intake.close(join_seconds=0)
        held = intake.held()
        if held:
            with contextlib.suppress(Exception):  # they come back by themselves after the visibility timeout
                self._queue.give_back(held)

    def _observe(self, heartbeat: HeartbeatWriter) -> None:
        """Look for a stop request and at the queue's backlog, apart from the appends."""
        flag = StopFlag(self._objects, self._key("stop.json"))
        backlog_due = 0.0
        while not self._stop.is_set():
            with contextlib.suppress(Exception):  # observing never ends a relay
                if flag.read() is not None:
                    self.stop()
            if time.monotonic() >= backlog_due:
                backlog_due = time.monotonic() + _BACKLOG_POLL_SECONDS
                with contextlib.suppress(Exception):  # observing never ends a relay
                    heartbeat.update(backlog_files=self._queue.approximate_backlog())
            self._stop.wait(_STOP_POLL_SECONDS)

    @contextlib.contextmanager
    def _heartbeat(self, lease: Lease) -> Iterator[HeartbeatWriter]:
        writer = HeartbeatWriter(
            self._objects,
            self._key("heartbeat.json"),
            pipeline=self._spec.relay,
            trigger_seconds=self._spec.append_seconds,
        )
        writer.update(owner=lease.owner, epoch=lease.epoch)
        writer.start()
        try:
            yield writer
        except Exception as error:
            unknown = {"condition": type(error).__name__, "message": str(error)}
            record = error.as_record() if isinstance(error, DeltaworksError) else unknown
            # Once the lease is lost the object is the successor's.
            if not lease.lost:
                writer.close(state="failed", error=record)
            raise
        writer.close(state="ended")

    def _verdict(self, error: Exception) -> Exception:
        """What a failure means: a lost lease explains whatever failed with it, an outage is worth another
        run."""
        if self._fenced and not isinstance(error, FencedError):
            return self._lease_lost()
        if is_outage(error) and not isinstance(error, DeltaworksError):
            return TransientError(
                "RELAY_OUTAGE",
                f"Relay {self._spec.relay!r} waited in vain for its queue or its log: {error}.",
                hint="Nothing is lost; start it again once queue and storage answer.",
            )
        return error

    def _lease_lost(self) -> FencedError:
        return FencedError(
            "LEASE_LOST",
            f"Relay {self._spec.relay!r} lost its lease to a successor or to storage that did not answer.",
            hint="Nothing where another relay runs; else check the lake's storage.",
        )

    def _on_lease_lost(self) -> None:
        _LOGGER.warning("Relay %s lost its lease", self._spec.relay)
        self._fenced = True
        self.stop(at_once=True)

    def _key(self, name: str) -> str:
        return relay_control(self._spec.relay, name)
