"""Exclusive locks: a second maintenance run is rejected, a dead one is soon replaced, and one job at a time deletes or
restores files of a table.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.control.locks.exclusive import (
    ExclusiveLock,
    exclusive_lock,
    maintenance_lock,
    table_files_lock,
    table_files_locks,
)
from deltaworks.control.locks.lease import Lease, LeaseRecord
from deltaworks.control.objects import LocalObjects, ObjectStore
from deltaworks.errors import ConcurrencyError
from tests.waiting import PATIENCE_SECONDS, eventually

TTL_SECONDS = 0.9
KEY = paths.pipeline_control("games", "maintenance/lease.json")


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return LocalObjects(tmp_path)


def lock(
    objects: ObjectStore, work: str = "optimize", *, pipeline: str = "games", ttl: float = TTL_SECONDS
) -> AbstractContextManager[ExclusiveLock]:
    return maintenance_lock(objects, pipeline, work=work, ttl_seconds=ttl, poll_seconds=0.02)


def test_a_second_run_is_rejected_while_the_first_is_running(objects: ObjectStore) -> None:
    with lock(objects, ttl=PATIENCE_SECONDS) as first:
        # The first one renews every third of its time to live; seeing that is enough, however long it lasts.
        stop = threading.Event()
        renewing = threading.Thread(target=_renew_until, args=(first._lease, stop))
        renewing.start()
        try:
            second = lock(objects, "vacuum", ttl=PATIENCE_SECONDS)
            with pytest.raises(ConcurrencyError, match=r"MAINTENANCE_RUNNING.*vacuum is rejected") as refused, second:
                raise AssertionError("two runs at once")
        finally:
            stop.set()
            renewing.join()
        assert refused.value.retryable
        with lock(objects, pipeline="edits"):
            pass

    with lock(objects) as mine:
        mine.check()


def _renew_until(lease: Lease, stop: threading.Event) -> None:
    while not stop.wait(0.05):
        assert lease._renew()


def test_a_killed_run_is_replaced_after_its_time_to_live(objects: ObjectStore) -> None:
    dead = Lease(objects, KEY, ttl_seconds=TTL_SECONDS, name="games")
    dead.acquire(wait_seconds=0)
    dead._stop.set()

    with lock(objects) as mine:
        mine.check()
        found = objects.get(KEY)

    record = LeaseRecord.decode_or_none(found.data) if found else None
    assert record is not None
    assert record.epoch == dead.epoch + 1


def test_a_fenced_run_must_not_continue(objects: ObjectStore) -> None:
    with lock(objects) as mine:
        objects.put(
            KEY,
            b'{"owner": "x", "epoch": 9, "beat": 0, "released": false, "host": "h", "pid": 1, "run": "r", '
            b'"written_at": ""}',
        )
        deadline = threading.Event()
        for _ in range(int(PATIENCE_SECONDS / 0.05)):
            if mine._lease.is_lost:
                break
            deadline.wait(0.05)
        with pytest.raises(ConcurrencyError, match="MAINTENANCE_LOCK_LOST"):
            mine.check()


def test_a_second_job_on_table_files_is_rejected_until_the_first_has_ended(objects: ObjectStore) -> None:
    def vacuum(table: str = "orders") -> None:
        with table_files_lock(objects, "shop", table, work="VACUUM", wait_seconds=0) as lock:
            lock.check()

    with table_files_locks(objects, "shop", ["orders", "items"], work="The restore"):
        with pytest.raises(ConcurrencyError, match=r"TABLE_FILES_HELD.*VACUUM of shop\.orders") as refused:
            vacuum()
        assert refused.value.retryable
        vacuum("quarantine")

    vacuum()
    vacuum("items")


def test_a_fenced_job_on_table_files_commits_nothing(objects: ObjectStore) -> None:
    with table_files_lock(objects, "shop", "orders", work="The restore", wait_seconds=0, ttl_seconds=0.3) as lock:
        objects.put(paths.pipeline_control("shop", "maintenance/files-orders.json"), b"another's")
        with pytest.raises(ConcurrencyError, match="TABLE_FILES_HELD"):
            eventually(lambda: lock.check() is not None, "it is told that the lease is lost")


def test_a_lock_without_custom_errors_raises_those_of_its_lease(objects: ObjectStore) -> None:
    def once() -> AbstractContextManager[ExclusiveLock]:
        lost = ConcurrencyError("MUTATION_LEASE_LOST", "another run", hint="none")
        return exclusive_lock(objects, KEY, name="games", wait_seconds=0, lost_error=lambda: lost)

    with once() as first:
        first.check()
        with pytest.raises(ConcurrencyError, match=r"LEASE_HELD.*games"), once():
            raise AssertionError("two runs at once")
