"""Empties a spool folder: every source's events go to its sink, and segments go once nobody needs them.

One thread a source, so that a sink that is away holds up nobody else; it holds up the folder, whose quota then turns
requests away. Nothing is given up: a source that is no longer declared keeps its segments until it is declared again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from collector.delivering import Closing, Delivery, LandingDelivery, ObjectSink, RecordDelivery
from collector.folder import SpoolFolder, size_of, sync_folder
from collector.metrics import SinkReading
from collector.progress import Progress
from collector.segments import Segment
from collector.sinks import RecordSink
from collector.spool_reading import Durable, Readable, SpoolCursor, all_segments, durable_segments

log = logging.getLogger(__name__)
#: What the progress of sealed frames is called, which no source can be.
VAULT = "_vault"
_SEALED_SECONDS = 30.0
_IDLE_SECONDS = 0.1
_DELETE_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LandingWay:
    """A source's events become objects below `prefix`."""

    sink: ObjectSink
    prefix: str
    closes: Closing


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordWay:
    """A source's events become records; `open_sink` is called once, in the thread that uses the sink."""

    open_sink: Callable[[], RecordSink]


Way = LandingWay | RecordWay


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """How far a source is: for the heartbeat and the metrics. `trouble` is empty where its sink takes events."""

    done: int
    objects: int
    events: int
    set_aside: int
    trouble: str
    trouble_since: float


class Drain:
    """Empties one folder that this process holds.

    Args:
        folder: held for as long as the drain runs.
        ways: the sink of each declared source.
        vault: takes what was sealed; without it nothing was.
        durable: where the folder's writer is; None where nobody writes into it.
        freed: called with how many bytes were deleted.
    """

    def __init__(
        self,
        folder: SpoolFolder,
        ways: Mapping[str, Way],
        *,
        vault: ObjectSink | None = None,
        durable: Durable | None = None,
        freed: Callable[[int], None] = lambda _bytes: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._freed = freed
        self._readable: Readable = lambda: (
            all_segments(folder.path) if durable is None else durable_segments(folder.path, durable)
        )
        self._stop = threading.Event()
        self._closing = threading.Event()
        self._deleting = threading.Lock()
        self._progress = Progress(folder.path)
        numbers = folder.source_numbers(ways)
        self._numbers = {numbers[name] for name in ways}
        self._unclaimed: dict[int, int] = {}
        self._deliveries = [self._delivery(name, way, numbers[name], clock=clock) for name, way in ways.items()]
        if vault is not None:
            self._deliveries.append(self._sealed_delivery(vault, clock=clock))
        self._drained = {delivery.source: threading.Event() for delivery in self._deliveries}
        self._threads = [
            threading.Thread(target=self._run, args=(delivery,), name=f"drain-{delivery.source}", daemon=True)
            for delivery in self._deliveries
        ]

    def start(self) -> None:
        """Begin, in threads of its own."""
        for thread in self._threads:
            thread.start()

    def stop(self, *, timeout_seconds: float) -> bool:
        """Deliver what lies in the spool for so long, then end; whether all of it is delivered. Nobody writes any more.

        Nothing that was acknowledged depends on it: what is left is delivered by the next process.
        """
        self._closing.set()
        end = time.monotonic() + timeout_seconds
        for drained in self._drained.values():
            drained.wait(max(0.0, end - time.monotonic()))
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout=5)
        self._delete()
        return all(drained.is_set() for drained in self._drained.values()) and not self._unclaimed

    def states(self) -> dict[str, SourceState]:
        """How far each source is."""
        states = {}
        for delivery in self._deliveries:
            record = self._progress.of(delivery.source)
            states[delivery.source] = SourceState(
                done=max(record.done, delivery.free_up_to),
                objects=record.objects,
                events=record.events,
                set_aside=record.set_aside,
                trouble=delivery.trouble.reason,
                trouble_since=delivery.trouble.since,
            )
        return states

    def sinks(self) -> dict[str, SinkReading]:
        """What each source's sink does, and what waits for it."""
        return {
            delivery.source: SinkReading(figures=delivery.figures, waiting_bytes=delivery.waiting_bytes)
            for delivery in self._deliveries
        }

    def delete_done(self) -> int:
        """Delete the segments that nobody needs any more; how many bytes that were.

        The newest one stays: its name has the number with which the next one begins.
        """
        with self._deleting:
            free = self.free_up_to()
            deleted = 0
            for stretch in self._readable()[:-1]:
                if stretch.before_seq - 1 > free:
                    break
                deleted += size_of(stretch.path)
                stretch.path.unlink(missing_ok=True)
            if deleted:
                sync_folder(self._folder.path)
                self._freed(deleted)
            return deleted

    def free_up_to(self) -> int:
        """Everything up to this number is where it belongs."""
        return min([self.delivered_up_to(), *(seq - 1 for seq in self._unclaimed.values())])

    def delivered_up_to(self) -> int:
        """Everything up to this number is where it belongs, but for sources that nobody declares."""
        return min((delivery.free_up_to for delivery in self._deliveries), default=0)

    def oldest_waiting_ms(self, next_seq: int) -> int | None:
        """About when the oldest event that waits came in, in milliseconds since 1970: when its segment was begun."""
        free = self.free_up_to()
        if free >= next_seq - 1 or not all(delivery.has_looked for delivery in self._deliveries):
            return None
        for stretch in self._readable():
            if stretch.before_seq - 1 > free:
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile: the next one is the oldest
                    header = Segment.open(stretch.path).header
                    return header.created_ms if header is not None else 0
        return None

    def _delivery(self, name: str, way: Way, number: int, *, clock: Callable[[], float]) -> Delivery:
        after, path = self._progress.of(name).done, self._folder.path
        cursor = SpoolCursor(self._readable, number, after=after, strange=self._strange)
        if isinstance(way, RecordWay):
            return RecordDelivery(
                name, cursor, self._progress, way.open_sink(), folder=path, stop=self._stop, clock=clock
            )
        return LandingDelivery(
            name,
            cursor,
            self._progress,
            way.sink,
            prefix=way.prefix,
            collector=self._folder.collector_name,
            closes=way.closes,
            folder=path,
            stop=self._stop,
            clock=clock,
        )

    def _sealed_delivery(self, vault: ObjectSink, *, clock: Callable[[], float]) -> Delivery:
        after = self._progress.of(VAULT).done
        return LandingDelivery(
            VAULT,
            SpoolCursor(self._readable, -1, after=after, sealed=True),
            self._progress,
            vault,
            prefix="",
            collector=self._folder.collector_name,
            closes=Closing(bytes=1 << 20, seconds=_SEALED_SECONDS),
            folder=self._folder.path,
            stop=self._stop,
            clock=clock,
        )

    def _strange(self, seq: int, number: int) -> None:
        """Note the first event of a source that nobody declares."""
        if number not in self._numbers and number not in self._unclaimed:
            name = self._folder.source_name(number) or f"number {number}"
            self._unclaimed[number] = seq
            log.error("%s: events of the source %s wait: it is declared no longer", self._folder.path, name)

    def _run(self, delivery: Delivery) -> None:
        deleted_at = 0.0
        try:
            while not self._stop.is_set():
                closing = self._closing.is_set()
                if not self._step(delivery, closing=closing):
                    if closing and not delivery.waits:
                        self._drained[delivery.source].set()
                    self._stop.wait(_IDLE_SECONDS)
                if time.monotonic() - deleted_at >= _DELETE_SECONDS:
                    deleted_at = time.monotonic()
                    self._delete()
        finally:
            delivery.close()

    def _step(self, delivery: Delivery, *, closing: bool) -> bool:
        try:
            return delivery.step(closing=closing)
        except Exception:  # a disk that fails: the folder is as it was, and the next try may do better
            log.exception("%s: reading the spool failed", delivery.source)
            self._stop.wait(1.0)
            return False

    def _delete(self) -> None:
        try:
            self.delete_done()
        except Exception:  # what can be read is delivered all the same
            log.exception("%s: what is delivered could not be deleted", self._folder.path)


def spool_folders(root: Path) -> list[Path]:
    """The folders of a spool, one a process: `w0`, `w1`, …"""
    return sorted(path for path in root.glob("w*") if path.is_dir())
