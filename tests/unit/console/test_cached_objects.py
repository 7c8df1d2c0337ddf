"""The cache of control objects: one read per key, stale values with their age, and no waits for a failing storage."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deltaworks.console.cached_objects import CachedObjects
from deltaworks.control.objects import LocalObjects, StoredObject
from deltaworks.errors import TransientError
from tests.waiting import eventually


class Storage(LocalObjects):
    """Objects on disk that count reads, and fail or hang on request."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads: Counter[str] = Counter()
        self.fails = False
        self.answers = threading.Event()
        self.answers.set()

    def get(self, key: str) -> StoredObject | None:
        self.reads[key] += 1
        self.answers.wait(30)
        if self.fails:
            raise TransientError("STORAGE_UNREACHABLE", "nobody answers", hint="")
        return super().get(key)


class Clock:
    """A clock that tests advance."""

    def __init__(self) -> None:
        self.moved = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.moved


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    storage = Storage(tmp_path)
    storage.put("a/heartbeat.json", b"1")
    storage.put("a/slow.json", b"1")
    return storage


def test_concurrent_requests_share_one_read(storage: Storage) -> None:
    cache = CachedObjects(lambda: storage, wait_seconds=30)
    storage.answers.clear()
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(lambda: cache.reader().get("a/heartbeat.json")) for _ in range(8)]
        eventually(lambda: storage.reads["a/heartbeat.json"] == 1, "the one read begins")
        storage.answers.set()
        values = [answer.result() for answer in answers]

    assert {value.data for value in values if value} == {b"1"}
    assert storage.reads == {"a/heartbeat.json": 1}


def test_a_heartbeat_expires_after_seconds_and_other_objects_after_a_minute(storage: Storage) -> None:
    clock = Clock()
    cache = CachedObjects(lambda: storage, clock=clock, wait_seconds=30)
    for moved in (0, 6, 62):
        clock.moved = moved
        cache.reader().fetch(["a/heartbeat.json", "a/slow.json"])

    assert storage.reads == {"a/heartbeat.json": 3, "a/slow.json": 2}


def test_an_unreadable_object_is_served_from_the_cache_with_its_age(storage: Storage) -> None:
    clock = Clock()
    cache = CachedObjects(lambda: storage, clock=clock, wait_seconds=30)
    cache.reader().get("a/heartbeat.json")
    storage.fails, clock.moved = True, 6
    reader = cache.reader()
    value = reader.get("a/heartbeat.json")

    assert value is not None
    assert value.data == b"1"
    assert reader.problem == "nobody answers"
    assert reader.stale_since is not None
    storage.fails, clock.moved = False, 12
    cache.reader().fetch(["a/heartbeat.json"])
    eventually(lambda: not _problem(cache), "it is read again")


def _problem(cache: CachedObjects) -> str:
    reader = cache.reader()
    reader.get("a/heartbeat.json")
    return reader.problem


def test_a_hanging_storage_delays_the_first_request_up_to_its_limit(storage: Storage) -> None:
    storage.answers.clear()
    cache = CachedObjects(lambda: storage, wait_seconds=0.2)
    keys = [f"k{number}/heartbeat.json" for number in range(100)]
    cache.reader().fetch(keys)
    reader = cache.reader()
    with pytest.raises(TransientError, match="NOT_READ_YET"):
        reader.get("k0/heartbeat.json")
    storage.answers.set()

    assert reader.is_reading
    assert not reader.problem, "no read has failed"
    assert set(storage.reads.values()) == {1}


def test_while_the_storage_fails_requests_do_not_wait_and_keys_are_retried_after_a_delay(storage: Storage) -> None:
    clock, storage.fails = Clock(), True
    cache = CachedObjects(lambda: storage, clock=clock, wait_seconds=30)
    for _ in range(5):
        with pytest.raises(TransientError):
            cache.reader().get("a/heartbeat.json")
    assert storage.reads["a/heartbeat.json"] == 1
    clock.moved = 6
    storage.answers.clear()

    def is_tried_again() -> bool:
        with pytest.raises(TransientError):
            cache.reader().get("a/heartbeat.json")  # would wait for 30 s for a storage that is not known to fail
        return storage.reads["a/heartbeat.json"] == 2

    eventually(is_tried_again, "it is tried again in the background")
    storage.answers.set()


def test_the_least_recently_read_entries_are_evicted(storage: Storage) -> None:
    cache = CachedObjects(lambda: storage, wait_seconds=30, max_entries=2)
    for key in ("x.json", "y.json", "z.json", "z.json", "x.json"):
        cache.reader().get(key)

    assert storage.reads == {"x.json": 2, "y.json": 1, "z.json": 1}


def test_nothing_is_written_through_a_reader(storage: Storage) -> None:
    reader = CachedObjects(lambda: storage).reader()

    with pytest.raises(PermissionError, match="does not write"):
        reader.put("a/heartbeat.json", b"2")
    with pytest.raises(PermissionError):
        reader.delete("a/heartbeat.json")
