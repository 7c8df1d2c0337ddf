"""Exclusive locks: one run of some work at a time, whoever starts it (Airflow, a retry, somebody by hand).

A lock is a lease on one object, so a process that was killed leaves it behind for seconds only. Two policies exist for
a lock that is held. `maintenance_lock` refuses: the run that holds it does what a second one would have done.
`table_files_lock` and plain `exclusive_lock` wait.

`table_files_lock` separates the deletion of a table's files from their restoration. VACUUM picks unneeded files by one
version and may delete them for an hour after that; a restore commits files of an old version that still exist. Run
together they would leave a table whose files are gone, whatever the retention. Streams, merges and OPTIMIZE do not take
it: what they commit is young, or part of the version that VACUUM goes by.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from deltaworks.control import paths
from deltaworks.control.locks.lease import Lease, LeaseRecord, UnchangedTimer
from deltaworks.control.objects import ObjectStore
from deltaworks.errors import ConcurrencyError

TTL_SECONDS = 20.0
#: Long enough to see that the holder is gone.
_SHORT_WAIT_SECONDS = 2 * TTL_SECONDS
#: A VACUUM of one table usually ends within this.
LONG_WAIT_SECONDS = 900.0
FILES_HELD = "TABLE_FILES_HELD"
#: Cause of the alert raised when a maintenance run is refused.
OVERLAP = "MAINTENANCE_OVERLAP"
R = TypeVar("R")


class ExclusiveLock:
    """A lock that is held. Obtained from the context managers of this module, which release it."""

    def __init__(self, lease: Lease, lost: Callable[[], ConcurrencyError]) -> None:
        self._lease = lease
        self._lost = lost

    def check(self) -> None:
        """Refuse to continue without the lock. Call it before each commit.

        Raises:
            ConcurrencyError: the condition of the lock's kind when another run took over or renewing failed.
        """
        if self._lease.is_lost:
            raise self._lost()


@contextlib.contextmanager
def exclusive_lock(
    objects: ObjectStore,
    key: str,
    *,
    name: str,
    wait_seconds: float,
    lost_error: Callable[[], ConcurrencyError],
    held_error: Callable[[ConcurrencyError], ConcurrencyError] = lambda error: error,
    ttl_seconds: float = TTL_SECONDS,
    poll_seconds: float = 0.5,
) -> Iterator[ExclusiveLock]:
    """Hold the lock at `key` while the block runs.

    Args:
        name: what the lock protects, for messages.
        wait_seconds: how long to wait for a holder that is alive.
        lost: builds the error that `ExclusiveLock.check` raises once the lock is lost.
        held: maps LEASE_HELD to the error raised when the wait is over; by default LEASE_HELD itself.

    Raises:
        ConcurrencyError: LEASE_HELD, or what `held` maps it to.
    """
    with contextlib.ExitStack() as stack:
        try:
            lease = stack.enter_context(
                Lease(objects, key, ttl_seconds=ttl_seconds, name=name).held(
                    wait_seconds=wait_seconds, poll_seconds=poll_seconds
                )
            )
        except ConcurrencyError as error:
            mapped = held_error(error)
            if mapped is error:
                raise
            raise mapped from error
        yield ExclusiveLock(lease, lost_error)


@contextlib.contextmanager
def maintenance_lock(
    objects: ObjectStore,
    pipeline: str,
    *,
    work: str,
    folder: str = "",
    ttl_seconds: float = TTL_SECONDS,
    poll_seconds: float = 0.5,
) -> Iterator[ExclusiveLock]:
    """Maintain a pipeline's tables exclusively while the block runs. A holder's next renewal refuses this run.

    `check` raises MAINTENANCE_LOCK_LOST.

    Args:
        work: the work to be done, for messages.
        folder: folder of the lock object, for work on one thing that need not wait for other maintenance; by default
            the pipeline's maintenance folder.

    Raises:
        ConcurrencyError: MAINTENANCE_RUNNING.
    """
    key = paths.lease(folder or paths.maintenance(pipeline))

    def lost() -> ConcurrencyError:
        return ConcurrencyError(
            "MAINTENANCE_LOCK_LOST",
            f"Another run keeps the tables of {pipeline!r}, or the storage did not answer for a while.",
            hint="Nothing: what was done stays done, and the next run continues from there.",
        )

    def held(_: ConcurrencyError) -> ConcurrencyError:
        current = objects.get(key)
        return _already_running(pipeline, work, LeaseRecord.decode(current.data) if current else None)

    _reject_live_holder(objects, key, pipeline, work, ttl_seconds=ttl_seconds, poll_seconds=poll_seconds)
    with exclusive_lock(
        objects,
        key,
        name=pipeline,
        # The lease itself has to see a dead holder silent for a time to live, too.
        wait_seconds=2 * ttl_seconds,
        lost_error=lost,
        held_error=held,
        ttl_seconds=ttl_seconds,
        poll_seconds=poll_seconds,
    ) as lock:
        yield lock


def _reject_live_holder(
    objects: ObjectStore, key: str, pipeline: str, work: str, *, ttl_seconds: float, poll_seconds: float
) -> None:
    """Watch the lease until it is renewed, which only a live holder does, or unchanged for its time to live."""
    current = objects.get(key)
    first_etag = current.etag if current else ""
    unchanged = UnchangedTimer()
    while current is not None:
        record = LeaseRecord.decode(current.data)
        if record is not None and record.released:
            return
        if current.etag != first_etag:
            raise _already_running(pipeline, work, record)
        if unchanged.seconds(current.etag) >= ttl_seconds:
            return
        time.sleep(poll_seconds)
        current = objects.get(key)


def _already_running(pipeline: str, work: str, holder: LeaseRecord | None) -> ConcurrencyError:
    by = f"process {holder.pid} on {holder.host} (run {holder.run})" if holder else "a newcomer"
    return ConcurrencyError(
        "MAINTENANCE_RUNNING",
        f"Maintenance of {pipeline!r} is at work already, by {by}; {work} is refused.",
        hint="Nothing: let that run end; what it leaves is found by the next one.",
    )


@contextlib.contextmanager
def table_files_lock(
    objects: ObjectStore,
    pipeline: str,
    table: str,
    *,
    work: str,
    wait_seconds: float = LONG_WAIT_SECONDS,
    ttl_seconds: float = TTL_SECONDS,
) -> Iterator[ExclusiveLock]:
    """Delete or restore files of one table exclusively while the block runs. `check` raises TABLE_FILES_HELD.

    Args:
        work: the work to be done, for messages.
        wait_seconds: how long to wait for the holder.

    Raises:
        ConcurrencyError: TABLE_FILES_HELD.
    """
    name = f"{pipeline}.{table}"

    def refusal(what: str) -> ConcurrencyError:
        return ConcurrencyError(
            FILES_HELD,
            f"{work} of {name} {what}",
            hint="Files of the table are being deleted, or put back: let that end, then run this again.",
        )

    with exclusive_lock(
        objects,
        paths.pipeline_control(pipeline, f"maintenance/files-{table}.json"),
        name=name,
        wait_seconds=wait_seconds,
        lost_error=lambda: refusal("was given up: another job has taken over, or the storage did not answer."),
        held_error=lambda error: refusal(f"was not begun within {wait_seconds:.0f} s. {error.message}"),
        ttl_seconds=ttl_seconds,
    ) as lock:
        yield lock


@contextlib.contextmanager
def table_files_locks(objects: ObjectStore, pipeline: str, tables: Iterable[str], *, work: str) -> Iterator[None]:
    """Hold `table_files_lock` of several tables.

    Raises:
        ConcurrencyError: TABLE_FILES_HELD.
    """
    with contextlib.ExitStack() as stack:
        for table in tables:
            stack.enter_context(table_files_lock(objects, pipeline, table, work=work))
        yield


def run_unless_files_held(
    objects: ObjectStore,
    pipeline: str,
    table: str,
    *,
    work: str,
    run: Callable[[], R],
    on_skip: Callable[[str], R],
    dry_run: bool,
) -> R:
    """The result of `run` under the table's files lock; that of `skipped(reason)` where another job holds it.

    A dry run deletes nothing and takes no lock. What `run` raises is raised.
    """
    if dry_run:
        return run()
    try:
        with table_files_lock(objects, pipeline, table, work=work, wait_seconds=_SHORT_WAIT_SECONDS):
            return run()
    except ConcurrencyError as error:
        if error.condition != FILES_HELD:
            raise
        return on_skip(f"skipped: {error.message}")
