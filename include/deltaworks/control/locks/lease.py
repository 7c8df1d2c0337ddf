"""Leases: the right to run a stream or relay, or to re-read a pipeline's input, for seconds at a time.

One object on shared storage names the owner and its epoch. The owner rewrites it every third of its time to live. A
challenger takes over only after it has seen the object unchanged for a full time to live, by its own monotonic clock,
so clocks of different machines are never compared. The lease decides only who runs; it does not protect the tables. A
paused former owner is fenced by the epoch, which the new owner raises in every table before it starts.

With the lease on re-reading, only one replay, reprocess, restore or start-over of a pipeline runs.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore, StoredObject
from deltaworks.control.provenance import current_run
from deltaworks.control.records.reprocess import LEASE_NAME
from deltaworks.control.records.store import StateRecord
from deltaworks.errors import ConcurrencyError, DeltaworksError, FencedError, TransientError


class LeaseRecord(StateRecord):
    """The holder of a lease. `epoch` grows by one with every change of owner and never repeats."""

    owner: str
    epoch: int
    renewal: int
    released: bool
    host: str
    pid: int
    run: str
    written_at: str
    ttl_seconds: float = 0.0


class UnchangedTimer:
    """Measures how long an object has been unchanged, by this process's monotonic clock. Single-threaded.

    Leases and write turns detect dead holders with it, without comparing clocks.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._etag: str | None = None
        self._changed_at = 0.0

    def seconds(self, etag: str) -> float:
        """Returns the seconds since this ETag was first observed; 0 for a new ETag."""
        now = self._clock()
        if etag != self._etag:
            self._etag, self._changed_at = etag, now
        return now - self._changed_at


class Lease:
    """One process's claim on one lease object. Single use: acquire, then release.

    Args:
        known_epoch: returns the highest owner epoch in the tables. Called if the lease object is missing or unreadable,
            so that the epoch never falls below the one that fences the tables.
    """

    def __init__(
        self,
        objects: ObjectStore,
        key: str,
        *,
        ttl_seconds: float,
        name: str,
        known_epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        self._objects = objects
        self._key = key
        self._ttl_seconds = ttl_seconds
        self._name = name
        self._known_epoch = known_epoch
        self._owner = uuid.uuid4().hex
        self._record: LeaseRecord | None = None
        self._etag = ""
        self._renewed_at = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lost = threading.Event()
        self._is_unanswered = False

    @property
    def owner(self) -> str:
        """The unique id of this claim."""
        return self._owner

    @property
    def epoch(self) -> int:
        """The acquired owner epoch; 0 before `acquire`."""
        return self._record.epoch if self._record else 0

    @property
    def is_lost(self) -> bool:
        """Whether another process took over, or renewal failed for a full time to live."""
        return self._lost.is_set()

    def lost_error(self) -> DeltaworksError:
        """Returns why the lease is lost.

        Without an answer of the storage for a full time to live another process may take over, but none need have done
        so: the process has to end, and can run again within seconds. A successor, however, is not to be disturbed.
        """
        if self._is_unanswered:
            return TransientError(
                "LEASE_EXPIRED",
                f"The lease of {self._name!r} could not be renewed for {self._ttl_seconds:.0f} s: the storage did not "
                "answer. No other process is known to have taken over.",
                hint="Nothing if the storage answers again: it starts by itself within seconds. Otherwise check it.",
            )
        return FencedError("LEASE_LOST", f"The lease of {self._name!r} went to a successor.")

    def acquire(
        self, *, wait_seconds: float, poll_seconds: float = 0.5, should_give_up: Callable[[], bool] = lambda: False
    ) -> int:
        """Acquires the lease and renews it in the background; returns the owner epoch.

        Args:
            should_give_up: cancels the wait.

        Raises:
            ConcurrencyError: LEASE_HELD if the holder was still renewing after `wait_seconds`.
        """
        deadline = time.monotonic() + wait_seconds
        unchanged = UnchangedTimer()
        while True:
            current = self._objects.get(self._key)
            if current is None or self._is_free(current):
                if self._claim(current):
                    return self.epoch
            elif unchanged.seconds(current.etag) >= self._ttl_seconds and self._claim(current):
                return self.epoch
            if time.monotonic() >= deadline or should_give_up():
                raise self._held_error(current)
            time.sleep(poll_seconds)

    @contextlib.contextmanager
    def held(self, *, wait_seconds: float, poll_seconds: float = 0.5) -> Iterator[Lease]:
        """Holds the lease while the block runs, and releases it afterwards.

        Raises:
            ConcurrencyError: LEASE_HELD, as from `acquire`.
        """
        self.acquire(wait_seconds=wait_seconds, poll_seconds=poll_seconds)
        try:
            yield self
        finally:
            self.release()

    @staticmethod
    def _is_free(current: StoredObject) -> bool:
        record = LeaseRecord.decode_or_none(current.data)
        return record is not None and record.released

    def _claim(self, current: StoredObject | None) -> bool:
        previous = LeaseRecord.decode_or_none(current.data) if current else None
        epoch = (previous.epoch if previous else self._known_epoch()) + 1
        record = self._build_record(epoch=epoch, renewal=0)
        if current is None:
            created = self._objects.put_if_absent(self._key, record.encode())
            written = self._objects.get(self._key) if created else None
            etag = written.etag if written and written.data == record.encode() else None
        else:
            etag = self._objects.put_if_match(self._key, record.encode(), current.etag)
        if etag is None:
            return False
        self._record, self._etag, self._renewed_at = record, etag, time.monotonic()
        self._thread = threading.Thread(target=self._renew_until_stopped, name=f"lease-{self._name}", daemon=True)
        self._thread.start()
        return True

    def _build_record(self, *, epoch: int, renewal: int, released: bool = False) -> LeaseRecord:
        return LeaseRecord(
            owner=self._owner,
            epoch=epoch,
            renewal=renewal,
            released=released,
            host=socket.gethostname(),
            pid=os.getpid(),
            run=current_run(),
            written_at=iso_now(),
            ttl_seconds=self._ttl_seconds,
        )

    def _held_error(self, current: StoredObject | None) -> ConcurrencyError:
        holder = LeaseRecord.decode_or_none(current.data) if current else None
        where = f"by process {holder.pid} on {holder.host} (run {holder.run})" if holder else "by another process"
        return ConcurrencyError(
            "LEASE_HELD",
            f"{self._name!r} is already running: its lease is held {where}.",
            hint=f"Nothing if that process should run; otherwise stop it with `deltaworks stop {self._name}`.",
        )

    def _renew_until_stopped(self) -> None:
        while not self._stop.wait(self._ttl_seconds / 3):
            if not self._renew():
                self._lost.set()
                return

    def _renew(self) -> bool:
        """Renews once. Storage failures are tolerated for one time to live."""
        record = self._record
        if record is None:
            return False
        successor = self._build_record(epoch=record.epoch, renewal=record.renewal + 1)
        try:
            etag = self._objects.put_if_match(self._key, successor.encode(), self._etag)
        except Exception:  # any storage failure is tolerated until the time to live is over
            return self._is_within_ttl()
        if etag is None:
            return self._adopt_own_renewal(record)
        self._record, self._etag, self._renewed_at = successor, etag, time.monotonic()
        return True

    def _is_within_ttl(self) -> bool:
        self._is_unanswered = time.monotonic() - self._renewed_at >= self._ttl_seconds
        return not self._is_unanswered

    def _adopt_own_renewal(self, record: LeaseRecord) -> bool:
        """Whether the stored object is our own renewal, whose reply was lost."""
        try:
            current = self._objects.get(self._key)
        except Exception:  # as in `_renew`
            return self._is_within_ttl()
        stored = LeaseRecord.decode_or_none(current.data) if current else None
        if current is None or stored is None or (stored.owner, stored.epoch) != (record.owner, record.epoch):
            return False
        self._record, self._etag, self._renewed_at = stored, current.etag, time.monotonic()
        return True

    def release(self) -> None:
        """Releases the lease, so that a successor need not wait. Does nothing if a successor has it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=self._ttl_seconds)
        # After a silence of the storage the write succeeds only if no successor has written since.
        if self._record is None or (self.is_lost and not self._is_unanswered):
            return
        record = self._build_record(epoch=self._record.epoch, renewal=self._record.renewal + 1, released=True)
        try:
            self._objects.put_if_match(self._key, record.encode(), self._etag)
        except DeltaworksError:
            return


class LeaseWatch:
    """A read-only observer of a lease."""

    def __init__(self, objects: ObjectStore, key: str, *, silent_seconds: float) -> None:
        self._objects = objects
        self._key = key
        self._silent_seconds = silent_seconds
        self._unchanged = UnchangedTimer()

    def is_held(self) -> bool:
        """Whether the lease is held and was renewed recently enough."""
        current = self._objects.get(self._key)
        if current is None:
            return False
        record = LeaseRecord.decode_or_none(current.data)
        if record is not None and record.released:
            return False
        limit_seconds = max(self._silent_seconds, 2 * record.ttl_seconds) if record else self._silent_seconds
        return self._unchanged.seconds(current.etag) < limit_seconds


def watch_lease(lease: Lease, on_lost: Callable[[], Any], *, poll_seconds: float = 0.5) -> threading.Thread:
    """Calls `on_lost` from a thread once the lease is lost."""

    def loop() -> None:
        while not lease.is_lost:
            if lease._stop.wait(poll_seconds):
                return
        on_lost()

    thread = threading.Thread(target=loop, name="lease-watch", daemon=True)
    thread.start()
    return thread


LEASE_SECONDS = 30
#: Long enough to detect a dead holder.
WAIT_SECONDS = 2 * LEASE_SECONDS


def reread_lease(home: PipelineHome) -> Lease:
    """Returns the lease on re-reading the pipeline's input."""
    key = paths.reprocess(home.pipeline, LEASE_NAME)
    return Lease(home.objects, key, ttl_seconds=LEASE_SECONDS, name=home.pipeline)
