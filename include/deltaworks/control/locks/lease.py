"""The lease: the right to run a stream or a relay, for seconds at a time.

One object on shared storage names the owner and its epoch. The owner rewrites it every third of its time to live; a
challenger takes over only when it has watched the object stay unchanged for a whole time to live by its own
monotonic clock, so no two clocks are ever compared. The lease is for liveness alone. What keeps a paused former
owner from writing is the epoch, which the new owner raises in every table before it starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from deltaworks.control.clock import iso_now
from deltaworks.control.objects import ObjectStore, StoredObject
from deltaworks.control.provenance import current_run
from deltaworks.errors import ConcurrencyError, DeltaworksError


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """Who holds the lease: `epoch` grows by one with every change of owner and never repeats."""

    owner: str
    epoch: int
    renewal: int
    released: bool
    host: str
    pid: int
    run: str
    written_at: str
    ttl_seconds: float = 0.0

    def encode(self) -> bytes:
        return json.dumps({name: getattr(self, name) for name in self.__slots__}).encode()

    @classmethod
    def decode(cls, data: bytes) -> LeaseRecord | None:
        """The record; None for an object that is torn or not a lease."""
        try:
            record = json.loads(data)
            return cls(**{name: record[name] for name in cls.__slots__ if name in record})
        except (ValueError, KeyError, TypeError):
            return None


class UnchangedTimer:
    """Measures how long a storage object has stayed unchanged, by this process's monotonic clock. One thread.

    Leases and turns judge by it whether the holder of an object is alive, without comparing clocks.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._etag: str | None = None
        self._changed_at = 0.0

    def seconds(self, etag: str) -> float:
        """Seconds since the object was first seen with this etag; 0 at its first sight."""
        now = self._clock()
        if etag != self._etag:
            self._etag, self._changed_at = etag, now
        return now - self._changed_at


class Lease:
    """One process's claim on one lease object. Use it once: acquire, then release.

    Args:
        known_epoch: returns the highest owner epoch recorded in the tables. Called when the object is absent or
            unreadable, so that a deleted or damaged lease does not restart below the epoch that fences the tables.
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

    @property
    def owner(self) -> str:
        """This claim's unique name."""
        return self._owner

    @property
    def epoch(self) -> int:
        """The owner epoch won; 0 before `acquire`."""
        return self._record.epoch if self._record else 0

    @property
    def is_lost(self) -> bool:
        """Whether somebody else has taken over, or renewing has failed for a whole time to live."""
        return self._lost.is_set()

    def acquire(
        self, *, wait_seconds: float, poll_seconds: float = 0.5, should_give_up: Callable[[], bool] = lambda: False
    ) -> int:
        """Take the lease and keep it renewed in the background; returns the owner epoch.

        Args:
            give_up: ends the wait before its time.

        Raises:
            ConcurrencyError: LEASE_HELD when its owner was still renewing after `wait_seconds`.
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
        """Hold the lease while the block runs, and release it however the block ends.

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
        record = LeaseRecord.decode(current.data)
        return record is not None and record.released

    def _claim(self, current: StoredObject | None) -> bool:
        before = LeaseRecord.decode(current.data) if current else None
        epoch = (before.epoch if before else self._known_epoch()) + 1
        record = self._build_record(epoch=epoch, beat=0)
        if current is None:
            won = self._objects.put_if_absent(self._key, record.encode())
            written = self._objects.get(self._key) if won else None
            etag = written.etag if written and written.data == record.encode() else None
        else:
            etag = self._objects.put_if_match(self._key, record.encode(), current.etag)
        if etag is None:
            return False
        self._record, self._etag, self._renewed_at = record, etag, time.monotonic()
        self._thread = threading.Thread(target=self._renew_until_stopped, name=f"lease-{self._name}", daemon=True)
        self._thread.start()
        return True

    def _build_record(self, *, epoch: int, beat: int, released: bool = False) -> LeaseRecord:
        return LeaseRecord(
            owner=self._owner,
            epoch=epoch,
            renewal=beat,
            released=released,
            host=socket.gethostname(),
            pid=os.getpid(),
            run=current_run(),
            written_at=iso_now(),
            ttl_seconds=self._ttl_seconds,
        )

    def _held_error(self, current: StoredObject | None) -> ConcurrencyError:
        holder = LeaseRecord.decode(current.data) if current else None
        where = f"by process {holder.pid} on {holder.host} (run {holder.run})" if holder else "by a newcomer"
        return ConcurrencyError(
            "LEASE_HELD",
            f"{self._name!r} is already running: its lease is held {where}.",
            hint=f"Nothing to do if that one is meant to run; else end it with `deltaworks stop {self._name}`.",
        )

    def _renew_until_stopped(self) -> None:
        while not self._stop.wait(self._ttl_seconds / 3):
            if not self._renew():
                self._lost.set()
                return

    def _renew(self) -> bool:
        """Renew once. Failures of the storage are tolerated for one time to live."""
        record = self._record
        if record is None:
            return False
        successor = self._build_record(epoch=record.epoch, beat=record.renewal + 1)
        try:
            etag = self._objects.put_if_match(self._key, successor.encode(), self._etag)
        except Exception:  # any failure of storage counts the same here: time decides
            return time.monotonic() - self._renewed_at < self._ttl_seconds
        if etag is None:
            return self._adopt_own_renewal(record)
        self._record, self._etag, self._renewed_at = successor, etag, time.monotonic()
        return True

    def _adopt_own_renewal(self, record: LeaseRecord) -> bool:
        """Whether the stored object is a renewal of our own whose reply never arrived."""
        try:
            current = self._objects.get(self._key)
        except Exception:  # as in `_renew`
            return time.monotonic() - self._renewed_at < self._ttl_seconds
        stored = LeaseRecord.decode(current.data) if current else None
        if current is None or stored is None or (stored.owner, stored.epoch) != (record.owner, record.epoch):
            return False
        self._record, self._etag, self._renewed_at = stored, current.etag, time.monotonic()
        return True

    def release(self) -> None:
        """Give the lease up so that a successor need not wait. Harmless when it is lost."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=self._ttl_seconds)
        if self._record is None or self.is_lost:
            return
        record = self._build_record(epoch=self._record.epoch, beat=self._record.renewal + 1, released=True)
        try:
            self._objects.put_if_match(self._key, record.encode(), self._etag)
        except DeltaworksError:
            return


class LeaseWatch:
    """An outsider's view of a lease: whether somebody holds it. Reads only."""

    def __init__(self, objects: ObjectStore, key: str, *, silent_seconds: float) -> None:
        self._objects = objects
        self._key = key
        self._silent_seconds = silent_seconds
        self._unchanged = UnchangedTimer()

    def is_held(self) -> bool:
        """Whether the lease is held and its holder has renewed it recently enough to be alive."""
        current = self._objects.get(self._key)
        if current is None:
            return False
        record = LeaseRecord.decode(current.data)
        if record is not None and record.released:
            return False
        limit_seconds = max(self._silent_seconds, 2 * record.ttl_seconds) if record else self._silent_seconds
        return self._unchanged.seconds(current.etag) < limit_seconds


def watch_lease(lease: Lease, on_lost: Callable[[], Any], *, poll_seconds: float = 0.5) -> threading.Thread:
    """Call `on_lost` from a thread once the lease is lost."""

    def loop() -> None:
        while not lease.is_lost:
            if lease._stop.wait(poll_seconds):
                return
        on_lost()

    thread = threading.Thread(target=loop, name="lease-watch", daemon=True)
    thread.start()
    return thread
