"""One run of a pipeline's maintenance at a time, whoever starts it: Airflow, a retry, somebody by hand.

A second run is refused, and not made to wait: what the first one does is what it would have done. The lock is a lease,
so a run that was killed leaves it behind for seconds only.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from deltaworks.control import paths
from deltaworks.control.locks.lease import Lease, LeaseRecord
from deltaworks.control.objects import ObjectStore
from deltaworks.errors import ConcurrencyError

TTL_SECONDS = 20.0
#: Cause of the alert that a refusal is worth.
OVERLAP = "MAINTENANCE_OVERLAP"


class MaintenanceLock:
    """The right to keep a pipeline's tables. Use `maintenance_lock`, which gives it back whatever happens."""

    def __init__(self, lease: Lease, pipeline: str) -> None:
        self._lease = lease
        self._pipeline = pipeline

    def check(self) -> None:
        """Refuse to go on without the right. Call it before each commit.

        Raises:
            ConcurrencyError: MAINTENANCE_LOCK_LOST.
        """
        if self._lease.lost:
            raise ConcurrencyError(
                "MAINTENANCE_LOCK_LOST",
                f"Another run keeps the tables of {self._pipeline!r}, or the storage did not answer for a while.",
                hint="Nothing: what was done stays done, and the next run goes on from there.",
            )


@contextlib.contextmanager
def maintenance_lock(
    objects: ObjectStore,
    pipeline: str,
    *,
    work: str,
    folder: str = "",
    ttl_seconds: float = TTL_SECONDS,
    poll_seconds: float = 0.5,
) -> Iterator[MaintenanceLock]:
    """Keep a pipeline's tables alone while the block runs. A run that is at work refuses this one at its next renewal.

    Args:
        work: what is to be done, for people.
        folder: where the lock lies, for work on one thing that need not wait for the rest; by default the pipeline's.

    Raises:
        ConcurrencyError: MAINTENANCE_RUNNING.
    """
    key = f"{folder or paths.pipeline_control(pipeline, 'maintenance')}/lease.json"
    _refuse_beside_another(objects, key, pipeline, work, ttl_seconds=ttl_seconds, poll_seconds=poll_seconds)
    lease = Lease(objects, key, ttl_seconds=ttl_seconds, name=pipeline)
    try:
        # Whoever was found silent has to be seen so by the lease too.
        lease.acquire(wait_seconds=2 * ttl_seconds, poll_seconds=poll_seconds)
    except ConcurrencyError as error:
        found = objects.get(key)
        raise _running(pipeline, work, LeaseRecord.decode(found.data) if found else None) from error
    try:
        yield MaintenanceLock(lease, pipeline)
    finally:
        lease.release()


def _refuse_beside_another(
    objects: ObjectStore, key: str, pipeline: str, work: str, *, ttl_seconds: float, poll_seconds: float
) -> None:
    """Watch the lease until it is renewed, which somebody alive does, or silent for its time to live."""
    found = objects.get(key)
    seen, since = found.etag if found else "", time.monotonic()
    while found is not None:
        record = LeaseRecord.decode(found.data)
        if record is not None and record.released:
            return
        if found.etag != seen:
            raise _running(pipeline, work, record)
        if time.monotonic() - since >= ttl_seconds:
            return
        time.sleep(poll_seconds)
        found = objects.get(key)


def _running(pipeline: str, work: str, holder: LeaseRecord | None) -> ConcurrencyError:
    by = f"process {holder.pid} on {holder.host} (run {holder.run})" if holder else "a newcomer"
    return ConcurrencyError(
        "MAINTENANCE_RUNNING",
        f"Maintenance of {pipeline!r} is at work already, by {by}; {work} is refused.",
        hint="Nothing: let that run end; what it leaves is found by the next one.",
    )
