"""The lease: the right to run a stream or a relay, for seconds at a time.

One object on shared storage names the owner and its epoch. The owner rewrites it every third of its time to live; a
challenger takes over only when it has watched the object stay unchanged for a whole time to live by its own
monotonic clock, so no two clocks are ever compared. The lease is for liveness alone. What keeps a paused former
owner from writing is the epoch, which the new owner raises in every table before it starts.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deltaworks.control.clock import iso_now
from deltaworks.control.objects import Found, ObjectStore
from deltaworks.control.provenance import current_run
from deltaworks.errors import ConcurrencyError, DeltaworksError


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """Who holds the lease: `epoch` grows by one with every change of owner and never repeats."""

    owner: str
    epoch: int
    beat: int
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
        """The record, or None for an object that is torn or none of ours."""
        try:
            record = json.loads(data)
            return cls(**{name: record[name] for name in cls.__slots__ if name in record})
        except (ValueError, KeyError, TypeError):
            return None


class Lease:
    """One process's claim on one lease object. Use it once: acquire, then release.

    Args:
        known_epoch: the highest owner epoch the tables know. Asked where the object is absent or cannot be read, so
            that a lease that was deleted or damaged does not begin anew below what fences the tables.
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
        self._ttl = ttl_seconds
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
    def lost(self) -> bool:
        """Whether somebody else has taken over, or renewing has failed for a whole time to live."""
        return self._lost.is_set()

    def acquire(self, *, wait_seconds: float, poll_seconds: float = 0.5) -> int:
        """Take the lease and keep it renewed in the background; returns the owner epoch.

        Raises:
            ConcurrencyError: LEASE_HELD when its owner was still renewing after `wait_seconds`.
        """
        deadline = time.monotonic() + wait_seconds
        seen: tuple[str, float] | None = None
        while True:
            found = self._objects.get(self._key)
            if found is None or self._is_free(found):
                if self._claim(found):
                    return self.epoch
            elif seen is None or seen[0] != found.etag:
                seen = (found.etag, time.monotonic())
            elif time.monotonic() - seen[1] >= self._ttl and self._claim(found):
                return self.epoch
            if time.monotonic() >= deadline:
                raise self._held(found)
            time.sleep(poll_seconds)

    @staticmethod
    def _is_free(found: Found) -> bool:
        record = LeaseRecord.decode(found.data)
        return record is not None and record.released

    def _claim(self, found: Found | None) -> bool:
        before = LeaseRecord.decode(found.data) if found else None
        epoch = (before.epoch if before else self._known_epoch()) + 1
        record = self._make(epoch=epoch, beat=0)
        if found is None:
            won = self._objects.put_if_absent(self._key, record.encode())
            now = self._objects.get(self._key) if won else None
            etag = now.etag if now and now.data == record.encode() else None
        else:
            etag = self._objects.put_if_match(self._key, record.encode(), found.etag)
        if etag is None:
            return False
        self._record, self._etag, self._renewed_at = record, etag, time.monotonic()
        self._thread = threading.Thread(target=self._keep, name=f"lease-{self._name}", daemon=True)
        self._thread.start()
        return True

    def _make(self, *, epoch: int, beat: int, released: bool = False) -> LeaseRecord:
        return LeaseRecord(
            owner=self._owner,
            epoch=epoch,
            beat=beat,
            released=released,
            host=socket.gethostname(),
            pid=os.getpid(),
            run=current_run(),
            written_at=iso_now(),
            ttl_seconds=self._ttl,
        )

    def _held(self, found: Found | None) -> ConcurrencyError:
        holder = LeaseRecord.decode(found.data) if found else None
        where = f"by process {holder.pid} on {holder.host} (run {holder.run})" if holder else "by a newcomer"
        return ConcurrencyError(
            "LEASE_HELD",
            f"{self._name!r} is already running: its lease is held {where}.",
            hint=f"Nothing to do if that one is meant to run; else end it with `deltaworks stop {self._name}`.",
        )

    def _keep(self) -> None:
        while not self._stop.wait(self._ttl / 3):
            if not self._renew():
                self._lost.set()
                return

    def _renew(self) -> bool:
        """Renew once; a storage that does not answer is tolerated for a time to live."""
        record = self._record
        if record is None:
            return False
        successor = self._make(epoch=record.epoch, beat=record.beat + 1)
        try:
            etag = self._objects.put_if_match(self._key, successor.encode(), self._etag)
        except Exception:  # any failure of storage counts the same here: time decides
            return time.monotonic() - self._renewed_at < self._ttl
        if etag is None:
            return self._adopt(record)
        self._record, self._etag, self._renewed_at = successor, etag, time.monotonic()
        return True

    def _adopt(self, record: LeaseRecord) -> bool:
        """Whether what is there now is a renewal of our own whose reply never came."""
        try:
            found = self._objects.get(self._key)
        except Exception:  # as in `_renew`
            return time.monotonic() - self._renewed_at < self._ttl
        held = LeaseRecord.decode(found.data) if found else None
        if found is None or held is None or (held.owner, held.epoch) != (record.owner, record.epoch):
            return False
        self._record, self._etag, self._renewed_at = held, found.etag, time.monotonic()
        return True

    def release(self) -> None:
        """Give the lease up so that a successor need not wait. Harmless when it is lost."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=self._ttl)
        if self._record is None or self.lost:
            return
        record = self._make(epoch=self._record.epoch, beat=self._record.beat + 1, released=True)
        try:
            self._objects.put_if_match(self._key, record.encode(), self._etag)
        except DeltaworksError:
            return


class LeaseWatch:
    """An outsider's view of a lease: whether somebody holds it. Reads only."""

    def __init__(self, objects: ObjectStore, key: str, *, silent_seconds: float) -> None:
        self._objects = objects
        self._key = key
        self._silent = silent_seconds
        self._seen: tuple[str, float] | None = None

    def runs(self) -> bool:
        """Whether the lease is held, and not unchanged for so long that its holder must be gone."""
        found = self._objects.get(self._key)
        if found is None:
            return False
        record = LeaseRecord.decode(found.data)
        if record is not None and record.released:
            return False
        if self._seen is None or self._seen[0] != found.etag:
            self._seen = (found.etag, time.monotonic())
        silent = max(self._silent, 2 * record.ttl_seconds) if record else self._silent
        return time.monotonic() - self._seen[1] < silent


def watch(lease: Lease, on_lost: Callable[[], Any], *, poll_seconds: float = 0.5) -> threading.Thread:
    """Call `on_lost` from a thread once the lease is lost."""

    def loop() -> None:
        while not lease.lost:
            if lease._stop.wait(poll_seconds):
                return
        on_lost()

    thread = threading.Thread(target=loop, name="lease-watch", daemon=True)
    thread.start()
    return thread
