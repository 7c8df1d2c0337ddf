"""Drains a spool folder: delivers every source's events to its sink, and deletes segments that are delivered.

One thread per source, so an unavailable sink delays only its own source. It also delays deletion in the folder, whose
quota then rejects requests. Nothing is discarded: the segments of a source that is no longer declared stay until it is
declared again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from collector.delivery import CloseThresholds, Delivery, LandingDelivery, ObjectSink, RecordDelivery
from collector.metrics import SinkSnapshot
from collector.progress import Progress
from collector.segments import Segment
from collector.sinks import RecordSink
from collector.spool_cursor import DurablePosition, RangeLister, SpoolCursor, list_all_ranges, list_durable_ranges
from collector.spool_folder import SpoolFolder, file_size, sync_folder

log = logging.getLogger(__name__)
#: The key under which the progress of sealed frames is stored; not a valid source name.
VAULT_SOURCE = "_vault"
_VAULT_CLOSE_SECONDS = 30.0
_IDLE_SECONDS = 0.1
_DELETE_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LandingDestination:
    """Delivers a source's events as objects below `prefix`."""

    sink: ObjectSink
    prefix: str
    thresholds: CloseThresholds


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDestination:
    """Delivers a source's events as records; `open_sink` is called once, in the thread that uses the sink."""

    open_sink: Callable[[], RecordSink]


Destination = LandingDestination | RecordDestination


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """The delivery state of a source, for heartbeat and metrics. `problem` is empty if delivery works."""

    delivered_up_to: int
    objects: int
    events: int
    dead_letters: int
    problem: str
    problem_since: float


class Drain:
    """Drains one folder that this process has locked.

    Args:
        folder: locked while the drain runs.
        destinations: the destination of each declared source.
        vault: sink of sealed frames; None if there are none.
        durable_position: returns the folder's durable position; None if nothing writes to it.
        on_deleted: called with the number of deleted bytes.
    """

    def __init__(
        self,
        folder: SpoolFolder,
        destinations: Mapping[str, Destination],
        *,
        vault: ObjectSink | None = None,
        durable_position: DurablePosition | None = None,
        on_deleted: Callable[[int], None] = lambda _bytes: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._on_deleted = on_deleted
        self._list_ranges: RangeLister = lambda: (
            list_all_ranges(folder.path)
            if durable_position is None
            else list_durable_ranges(folder.path, durable_position)
        )
        self._stop = threading.Event()
        self._flushing = threading.Event()
        self._delete_lock = threading.Lock()
        self._progress = Progress(folder.path)
        numbers = folder.source_numbers(destinations)
        self._source_numbers = {numbers[name] for name in destinations}
        self._unclaimed: dict[int, int] = {}
        self._deliveries = [
            self._new_delivery(name, destination, numbers[name], clock=clock)
            for name, destination in destinations.items()
        ]
        if vault is not None:
            self._deliveries.append(self._new_vault_delivery(vault, clock=clock))
        self._drained = {delivery.source: threading.Event() for delivery in self._deliveries}
        self._threads = [
            threading.Thread(target=self._run, args=(delivery,), name=f"drain-{delivery.source}", daemon=True)
            for delivery in self._deliveries
        ]

    def start(self) -> None:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self, *, timeout_seconds: float) -> bool:
        """Delivers the remaining events within the timeout, then ends; returns whether all were delivered. The writer
        must have stopped.

        If events remain, the next process that drains the folder delivers them.
        """
        self._flushing.set()
        end = time.monotonic() + timeout_seconds
        for drained in self._drained.values():
            drained.wait(max(0.0, end - time.monotonic()))
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout=5)
        self._delete_or_log()
        return all(drained.is_set() for drained in self._drained.values()) and not self._unclaimed

    def states(self) -> dict[str, SourceState]:
        """Returns the delivery state of each source."""
        states = {}
        for delivery in self._deliveries:
            record = self._progress.get(delivery.source)
            states[delivery.source] = SourceState(
                delivered_up_to=max(record.delivered_up_to, delivery.deletable_up_to),
                objects=record.objects,
                events=record.events,
                dead_letters=record.dead_letters,
                problem=delivery.problem.reason,
                problem_since=delivery.problem.since,
            )
        return states

    def sinks(self) -> dict[str, SinkSnapshot]:
        """Returns the metrics and the waiting bytes of each source's sink."""
        return {
            delivery.source: SinkSnapshot(metrics=delivery.metrics, waiting_bytes=delivery.waiting_bytes)
            for delivery in self._deliveries
        }

    def delete_delivered(self) -> int:
        """Deletes segments that are delivered; returns the number of bytes.

        The last segment stays, because its name holds the next event number.
        """
        with self._delete_lock:
            deletable = self.deletable_up_to()
            deleted = 0
            for byte_range in self._list_ranges()[:-1]:
                if byte_range.before_seq - 1 > deletable:
                    break
                deleted += file_size(byte_range.path)
                byte_range.path.unlink(missing_ok=True)
            if deleted:
                sync_folder(self._folder.path)
                self._on_deleted(deleted)
            return deleted

    def deletable_up_to(self) -> int:
        """Returns the event number up to which everything is delivered."""
        return min([self.delivered_up_to(), *(seq - 1 for seq in self._unclaimed.values())])

    def delivered_up_to(self) -> int:
        """Returns the event number up to which everything is delivered, except events of undeclared sources."""
        return min((delivery.deletable_up_to for delivery in self._deliveries), default=0)

    def oldest_waiting_ms(self, next_seq: int) -> int | None:
        """Returns about when the oldest undelivered event was received, in milliseconds since 1970: its segment's
        creation time.
        """
        deletable = self.deletable_up_to()
        if deletable >= next_seq - 1 or not all(delivery.has_scanned for delivery in self._deliveries):
            return None
        for byte_range in self._list_ranges():
            if byte_range.before_seq - 1 > deletable:
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile, so the next one is the oldest
                    header = Segment.open(byte_range.path).header
                    return header.created_ms if header is not None else 0
        return None

    def _new_delivery(
        self, name: str, destination: Destination, number: int, *, clock: Callable[[], float]
    ) -> Delivery:
        after, path = self._progress.get(name).delivered_up_to, self._folder.path
        cursor = SpoolCursor(self._list_ranges, number, after=after, on_unknown_source=self._record_undeclared)
        if isinstance(destination, RecordDestination):
            return RecordDelivery(
                name, cursor, self._progress, destination.open_sink(), folder=path, stop=self._stop, clock=clock
            )
        return LandingDelivery(
            name,
            cursor,
            self._progress,
            destination.sink,
            prefix=destination.prefix,
            collector=self._folder.collector_hex,
            thresholds=destination.thresholds,
            folder=path,
            stop=self._stop,
            clock=clock,
        )

    def _new_vault_delivery(self, vault: ObjectSink, *, clock: Callable[[], float]) -> Delivery:
        after = self._progress.get(VAULT_SOURCE).delivered_up_to
        return LandingDelivery(
            VAULT_SOURCE,
            SpoolCursor(self._list_ranges, -1, after=after, sealed_frames=True),
            self._progress,
            vault,
            prefix="",
            collector=self._folder.collector_hex,
            thresholds=CloseThresholds(bytes=1 << 20, seconds=_VAULT_CLOSE_SECONDS),
            folder=self._folder.path,
            stop=self._stop,
            clock=clock,
        )

    def _record_undeclared(self, seq: int, number: int) -> None:
        """Records the first event of an undeclared source, so that its segment is kept."""
        if number not in self._source_numbers and number not in self._unclaimed:
            name = self._folder.source_name(number) or f"number {number}"
            self._unclaimed[number] = seq
            log.error(
                "%s: events of source %s are not delivered because it is no longer declared", self._folder.path, name
            )

    def _run(self, delivery: Delivery) -> None:
        deleted_at = 0.0
        try:
            while not self._stop.is_set():
                closing = self._flushing.is_set()
                if not self._step(delivery, flush=closing):
                    if closing and not delivery.has_pending:
                        self._drained[delivery.source].set()
                    self._stop.wait(_IDLE_SECONDS)
                if time.monotonic() - deleted_at >= _DELETE_SECONDS:
                    deleted_at = time.monotonic()
                    self._delete_or_log()
        finally:
            delivery.close()

    def _step(self, delivery: Delivery, *, flush: bool) -> bool:
        try:
            return delivery.step(flush=flush)
        except Exception:  # a disk failure leaves the folder unchanged, and a retry may succeed
            log.exception("%s: reading the spool failed", delivery.source)
            self._stop.wait(1.0)
            return False

    def _delete_or_log(self) -> None:
        try:
            self.delete_delivered()
        except Exception:  # delivery continues regardless
            log.exception("%s: delivered segments could not be deleted", self._folder.path)


def spool_folders(root: Path) -> list[Path]:
    """Returns the folders of a spool, one per process: `w0`, `w1`, …"""
    return sorted(path for path in root.glob("w*") if path.is_dir())
