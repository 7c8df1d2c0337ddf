"""Exclusive locks: one run of a kind of work at a time, whether started by Airflow, a retry or a person.

A lock is a lease on one object, so a killed process blocks others only for seconds. `maintenance_lock` fails if another
live run holds the lock, because that run does the same work. `table_files_lock` and `exclusive_lock` wait.

The lock of `table_files_lock` prevents that files of a table are deleted and restored at the same time. VACUUM chooses
files by one version and may delete them for an hour after that; a restore commits files of an old version that still
exist. Together they could leave a table with missing files, even with a long retention. Streams, merges and OPTIMIZE do
not need the lock: their files are new, or part of the version VACUUM uses.
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
#: Long enough to detect a dead holder.
_SHORT_WAIT_SECONDS = 2 * TTL_SECONDS
#: VACUUM of one table usually takes less than this.
LONG_WAIT_SECONDS = 900.0
FILES_HELD = "TABLE_FILES_HELD"
#: Cause of the alert on a rejected maintenance run.
MAINTENANCE_OVERLAP = "MAINTENANCE_OVERLAP"
R = TypeVar("R")


class ExclusiveLock:
    """A lock that this process has acquired. The context managers of this module acquire and release it."""

    def __init__(self, lease: Lease, lost_error: Callable[[], ConcurrencyError]) -> None:
        self._lease = lease
        self._lost_error = lost_error

    def check(self) -> None:
        """Raises if the lock was lost. Call it before each commit.

        Raises:
            ConcurrencyError: with the condition of the lock's kind, if another run took over or renewal failed.
        """
        if self._lease.is_lost:
            raise self._lost_error()


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
    """Holds the lock at `key` while the block runs.

    Args:
        name: the locked resource, for messages.
        wait_seconds: how long to wait for a live holder.
        lost_error: builds the error that `ExclusiveLock.check` raises.
        held_error: maps LEASE_HELD to the error raised after the wait; by default LEASE_HELD itself.

    Raises:
        ConcurrencyError: LEASE_HELD, or the error of `held_error`.
    """
    with contextlib.ExitStack() as stack:
        try:
            lease = stack.enter_context(
                Lease(objects, key, ttl_seconds=ttl_seconds, name=name).held(
                    wait_seconds=wait_seconds, poll_seconds=poll_seconds
                )
            )
        except ConcurrencyError as error:
            converted = held_error(error)
            if converted is error:
                raise
            raise converted from error
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
    """Holds a pipeline's maintenance lock while the block runs. Fails as soon as another holder renews its lease.

    `check` raises MAINTENANCE_LOCK_LOST.

    Args:
        work: description of the work, for messages.
        folder: folder of the lock object, for work that does not conflict with other maintenance; by default the
            pipeline's
            maintenance folder.

    Raises:
        ConcurrencyError: MAINTENANCE_RUNNING.
    """
    key = paths.lease(folder or paths.maintenance(pipeline))

    def lost() -> ConcurrencyError:
        return ConcurrencyError(
            "MAINTENANCE_LOCK_LOST",
            f"Another run maintains the tables of {pipeline!r}, or the storage did not answer for a while.",
        )

    def held(_: ConcurrencyError) -> ConcurrencyError:
        current = objects.get(key)
        return _already_running(pipeline, work, LeaseRecord.decode_or_none(current.data) if current else None)

    _reject_live_holder(objects, key, pipeline, work, ttl_seconds=ttl_seconds, poll_seconds=poll_seconds)
    with exclusive_lock(
        objects,
        key,
        name=pipeline,
        # The lease also waits for a time to live before it replaces a dead holder.
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
    """Raises MAINTENANCE_RUNNING if the holder renews the lease within its time to live."""
    current = objects.get(key)
    first_etag = current.etag if current else ""
    unchanged = UnchangedTimer()
    while current is not None:
        record = LeaseRecord.decode_or_none(current.data)
        if record is not None and record.released:
            return
        if current.etag != first_etag:
            raise _already_running(pipeline, work, record)
        if unchanged.seconds(current.etag) >= ttl_seconds:
            return
        time.sleep(poll_seconds)
        current = objects.get(key)


def _already_running(pipeline: str, work: str, holder: LeaseRecord | None) -> ConcurrencyError:
    by = f"process {holder.pid} on {holder.host} (run {holder.run})" if holder else "another process"
    return ConcurrencyError(
        "MAINTENANCE_RUNNING", f"Maintenance of {pipeline!r} is already running, by {by}; {work} is rejected."
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
    """Holds the lock on deletion and restoration of a table's files while the block runs. `check` raises
    TABLE_FILES_HELD.

    Args:
        work: description of the work, for messages.
        wait_seconds: how long to wait for the holder.

    Raises:
        ConcurrencyError: TABLE_FILES_HELD.
    """
    name = f"{pipeline}.{table}"

    def rejection(outcome: str) -> ConcurrencyError:
        return ConcurrencyError(
            FILES_HELD,
            f"{work} of {name} {outcome}",
            hint="Another job deletes or restores files of the table. Wait until it ends, then run this again.",
        )

    with exclusive_lock(
        objects,
        paths.table_files_lease(pipeline, table),
        name=name,
        wait_seconds=wait_seconds,
        lost_error=lambda: rejection("was aborted: another job took over, or the storage did not answer."),
        held_error=lambda error: rejection(f"did not start within {wait_seconds:.0f} s. {error.message}"),
        ttl_seconds=ttl_seconds,
    ) as lock:
        yield lock


@contextlib.contextmanager
def table_files_locks(objects: ObjectStore, pipeline: str, tables: Iterable[str], *, work: str) -> Iterator[None]:
    """Holds `table_files_lock` of several tables.

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
    """Returns the result of `run` under the table's files lock, or of `on_skip(reason)` if another job holds it.

    A dry run deletes nothing and takes no lock. Exceptions of `run` propagate.
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
