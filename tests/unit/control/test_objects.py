"""The contract of object stores, tested on each implementation."""

from __future__ import annotations

import os
import stat
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from deltaworks.control.objects import LocalObjects, ObjectStore, S3Objects, open_objects
from deltaworks.errors import TransientError
from deltaworks.specs.storage import StorageSpec
from deltaworks.testing import local_storage, present
from sandbox.servers.fault_proxy import Action, Fault, FaultProxy, running_fault_proxy


def test_a_missing_object_is_none(objects: ObjectStore) -> None:
    assert objects.get("no/such/thing") is None


def test_an_object_is_written_and_replaced(objects: ObjectStore) -> None:
    objects.put("a/b.json", b"one")
    first = objects.get("a/b.json")
    objects.put("a/b.json", b"two")
    second = objects.get("a/b.json")

    assert first is not None
    assert second is not None
    assert (first.data, second.data) == (b"one", b"two")
    assert first.etag != second.etag


def test_the_etag_is_read_without_the_bytes(objects: ObjectStore) -> None:
    objects.put("a/one", b"1")
    before = objects.etag("a/one")
    objects.put("a/one", b"2")
    stored = objects.get("a/one")

    assert stored is not None
    assert objects.etag("a/one") == stored.etag != before
    assert objects.etag("a/none") is None
    assert objects.etag("a") is None


def test_a_folder_is_not_an_object(objects: ObjectStore) -> None:
    objects.put("a/b.json", b"one")

    assert objects.get("a") is None
    assert objects.get("a/b.json/c") is None


def test_only_the_first_creates(objects: ObjectStore) -> None:
    assert objects.put_if_absent("k", b"first")
    assert not objects.put_if_absent("k", b"second")

    assert present(objects.get("k")).data == b"first"


def test_creating_again_with_the_same_bytes_succeeds(
    objects: ObjectStore,
) -> None:
    assert objects.put_if_absent("k", b"mine")

    assert objects.put_if_absent("k", b"mine")


def test_only_the_named_version_is_replaced(objects: ObjectStore) -> None:
    objects.put("k", b"one")
    found = present(objects.get("k"))

    etag = objects.put_if_match("k", b"two", found.etag)

    assert etag is not None
    assert objects.put_if_match("k", b"three", found.etag) is None
    now = present(objects.get("k"))
    assert (now.data, now.etag) == (b"two", etag)
    assert objects.put_if_match("k", b"three", etag) is not None


def test_replacing_a_deleted_object_fails(objects: ObjectStore) -> None:
    objects.put("k", b"one")
    found = present(objects.get("k"))
    objects.delete("k")

    assert objects.put_if_match("k", b"two", found.etag) is None
    assert objects.get("k") is None


def test_replacing_again_with_the_same_bytes_succeeds(
    objects: ObjectStore,
) -> None:
    objects.put("k", b"one")
    found = present(objects.get("k"))
    etag = objects.put_if_match("k", b"mine", found.etag)

    assert objects.put_if_match("k", b"mine", found.etag) == etag


def test_keys_are_listed_by_prefix_in_order(objects: ObjectStore) -> None:
    for key in ("a/2", "a/1", "a/b/c", "ab", "b"):
        objects.put(key, b"x")

    assert objects.list("a/") == ["a/1", "a/2", "a/b/c"]
    assert objects.list("a") == ["a/1", "a/2", "a/b/c", "ab"]
    assert objects.list("") == ["a/1", "a/2", "a/b/c", "ab", "b"]
    assert objects.list("nothing/here") == []


class SmallPagesClient:
    """A boto3 client with listing pages of two keys."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def get_paginator(self, name: str) -> SmallPagesClient:
        return SmallPagesClient(self._client.get_paginator(name))

    def paginate(self, **request: Any) -> Any:
        return self._client.paginate(**request, PaginationConfig={"PageSize": 2})


def test_all_pages_of_a_listing_are_read(s3_objects: S3Objects) -> None:
    for number in range(7):
        s3_objects.put(f"many/{number}", b"")

    s3_objects._client = SmallPagesClient(s3_objects._client)

    assert s3_objects.list("many/") == [f"many/{number}" for number in range(7)]


def test_a_conditional_write_leaves_no_other_objects(objects: ObjectStore) -> None:
    objects.put_if_absent("folder/k", b"one")
    objects.put_if_absent("folder/k", b"two")
    found = present(objects.get("folder/k"))
    objects.put_if_match("folder/k", b"three", found.etag)

    assert objects.list("folder/") == ["folder/k"]


def test_deleting_is_repeatable(objects: ObjectStore) -> None:
    objects.put("k", b"x")

    objects.delete("k")
    objects.delete("k")

    assert objects.get("k") is None


def race(count: int, work: Callable[[int], Any]) -> list[Any]:
    barrier = threading.Barrier(count)

    def one(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_one_of_many_concurrent_creators_wins(local_objects: LocalObjects) -> None:
    for attempt in range(20):
        won = race(16, lambda n, key=f"k{attempt}": local_objects.put_if_absent(key, f"writer {n}".encode()))

        found = present(local_objects.get(f"k{attempt}"))
        assert [n for n, each in enumerate(won) if each] == [int(found.data.split()[1])]


def test_one_of_many_concurrent_replacers_wins(local_objects: LocalObjects) -> None:
    for attempt in range(20):
        local_objects.put("k", f"start {attempt}".encode())
        start = present(local_objects.get("k"))

        won = race(16, lambda n, etag=start.etag: local_objects.put_if_match("k", f"writer {n}".encode(), etag))

        found = present(local_objects.get("k"))
        assert [n for n, each in enumerate(won) if each] == [int(found.data.split()[1])]


def test_a_reader_never_sees_half_an_object(local_objects: LocalObjects) -> None:
    sizes = [10, 3_000_000]
    local_objects.put("k", b"x" * sizes[0])
    done = threading.Event()
    seen = set()

    def read() -> None:
        while not done.is_set():
            found = local_objects.get("k")
            seen.add(len(found.data) if found else None)

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(40):
        local_objects.put("k", b"x" * sizes[turn % 2])
    done.set()
    reader.join()

    assert seen <= set(sizes)


class ReplyLosingClient:
    """A boto3 client whose next conditional put succeeds without a reply, so boto3 retries it."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def put_object(self, **request: Any) -> Any:
        self._client.put_object(**request)
        return self._client.put_object(**request)


def test_a_lost_s3_reply_is_recognised_by_equal_bytes(s3_objects: S3Objects) -> None:
    s3_objects._client = ReplyLosingClient(s3_objects._client)

    assert s3_objects.put_if_absent("k", b"mine, unique")
    found = present(s3_objects.get("k"))
    assert s3_objects.put_if_match("k", b"mine, unique too", found.etag) is not None


def test_unreachable_storage_is_a_transient_error(
    s3_storage: StorageSpec,
) -> None:
    gone = s3_storage.model_copy(update={"endpoint": "http://127.0.0.1:9"})
    objects = S3Objects(gone)
    objects._client = boto3.client("s3", config=Config(retries={"max_attempts": 0}), **gone.boto3_options())

    for call in (
        lambda: objects.get("k"),
        lambda: objects.put("k", b""),
        lambda: objects.put_if_absent("k", b""),
        lambda: objects.list(""),
        lambda: objects.delete("k"),
    ):
        with pytest.raises(TransientError) as caught:
            call()
        assert caught.value.condition == "STORAGE_UNREACHABLE"


def test_a_missing_bucket_is_distinguished_from_a_missing_object(s3_storage: StorageSpec) -> None:
    objects = open_objects(s3_storage.model_copy(update={"root": "s3://no-such-bucket"}))

    with pytest.raises(TransientError, match="STORAGE_REFUSED"):
        objects.get("k")


def test_a_local_root_is_created_on_first_write(tmp_path: Path) -> None:
    objects = open_objects(local_storage(tmp_path / "new/folder"))

    assert objects.list("") == []
    objects.put("a", b"x")
    assert objects.list("") == ["a"]


CONFLICT = Fault(action=Action.REFUSE, method="PUT", status=409, code="ConditionalRequestConflict", times=2)


@pytest.fixture
def behind_proxy(s3_storage: StorageSpec) -> Iterator[tuple[S3Objects, FaultProxy]]:
    """The bucket behind a proxy that can reject requests."""
    with running_fault_proxy(str(s3_storage.endpoint)) as proxy:
        objects = S3Objects(s3_storage.model_copy(update={"endpoint": proxy.endpoint}))
        objects._prefix = f"{uuid.uuid4().hex}/"
        yield objects, proxy


def test_a_conflict_without_an_object_is_retried_and_creates_it(
    behind_proxy: tuple[S3Objects, FaultProxy],
) -> None:
    objects, proxy = behind_proxy
    proxy.faults = (CONFLICT,)

    assert objects.put_if_absent("k", b"mine")

    stored = objects.get("k")
    assert (stored and stored.data, len(proxy.incidents)) == (b"mine", 2)


def test_a_conflict_with_the_expected_version_is_retried_and_replaces_it(
    behind_proxy: tuple[S3Objects, FaultProxy],
) -> None:
    objects, proxy = behind_proxy
    objects.put("k", b"one")
    first = present(objects.get("k"))
    proxy.faults = (CONFLICT,)

    etag = objects.put_if_match("k", b"two", first.etag)

    stored = present(objects.get("k"))
    assert (stored.data, stored.etag) == (b"two", etag)


def test_a_conflict_with_another_object_is_a_lost_race(behind_proxy: tuple[S3Objects, FaultProxy]) -> None:
    objects, proxy = behind_proxy
    objects.put("k", b"one")
    proxy.faults = (CONFLICT,)

    assert not objects.put_if_absent("k", b"two")
    assert objects.put_if_match("k", b"two", "another") is None
    assert len(proxy.incidents) == 2


def test_endless_conflicts_are_an_error_and_not_a_lost_race(
    behind_proxy: tuple[S3Objects, FaultProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, proxy = behind_proxy
    objects.put("there", b"one")
    stored = present(objects.get("there"))
    monkeypatch.setattr("deltaworks.control.background.time.sleep", lambda seconds: None)
    proxy.faults = (replace(CONFLICT, times=None),)

    with pytest.raises(TransientError, match="no such object exists") as absent:
        objects.put_if_absent("k", b"mine")
    with pytest.raises(TransientError, match="the stored version matches"):
        objects.put_if_match("there", b"two", stored.etag)

    assert absent.value.condition == "STORAGE_REFUSED"


def test_the_directory_entry_of_a_local_write_is_synced(
    local_objects: LocalObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, list[str]]] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        sync(descriptor)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            folder = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            shown = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
            synced.append((folder.relative_to(tmp_path).as_posix(), shown))

    monkeypatch.setattr(os, "fsync", noted)
    local_objects.put_if_absent("a/b/k", b"one")
    # The folders that were made, from the top, and then the one with the new name in it.
    assert synced == [(".", ["objects"]), ("objects", ["a"]), ("objects/a", ["b"]), ("objects/a/b", ["k"])]

    stored = present(local_objects.get("a/b/k"))
    for write in (
        lambda: local_objects.put("a/b/other", b"x"),
        lambda: local_objects.put_if_match("a/b/k", b"two", stored.etag),
        lambda: local_objects.put_if_absent("a/b/k", b"two"),
        lambda: local_objects.delete("a/b/k"),
    ):
        synced.clear()
        write()
        assert [folder for folder, _ in synced] == ["objects/a/b"]
    assert synced == [("objects/a/b", ["other"])]
