"""Object stores under test: local disk, S3 as served by moto, and one that loses replies."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control.objects import LocalObjects, ObjectStore, S3Objects, StoredObject
from deltaworks.errors import TransientError
from deltaworks.specs.storage import StorageSpec
from tests.moto_server import running_moto


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with running_moto() as address:
        yield address


@pytest.fixture(scope="session")
def s3_store(s3_endpoint: str) -> Iterator[tuple[StorageSpec, S3Objects]]:
    """One bucket and client for all tests: creating a client is slower than most tests."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TEST_ACCESS_KEY", "testing")
        patched.setenv("TEST_SECRET_KEY", "testing")
        storage = StorageSpec(
            root=f"s3://lake-{uuid.uuid4().hex[:8]}",
            endpoint=s3_endpoint,
            path_style=True,
            access_key="env:TEST_ACCESS_KEY",
            secret_key="env:TEST_SECRET_KEY",
        )
        store = S3Objects(storage)
        store._client.create_bucket(Bucket=storage.bucket)
        yield storage, store


@pytest.fixture
def s3_objects(s3_store: tuple[StorageSpec, S3Objects]) -> S3Objects:
    """An object store with a prefix of its own."""
    mine = copy.copy(s3_store[1])
    mine._prefix = f"{uuid.uuid4().hex}/prefix/"
    return mine


@pytest.fixture
def s3_storage(s3_store: tuple[StorageSpec, S3Objects]) -> StorageSpec:
    """The storage spec of the bucket."""
    return s3_store[0]


@pytest.fixture(params=["local", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """Each implementation in turn."""
    if request.param == "local":
        return LocalObjects(tmp_path / "objects")
    s3: S3Objects = request.getfixturevalue("s3_objects")
    return s3


@pytest.fixture
def local_objects(tmp_path: Path) -> LocalObjects:
    return LocalObjects(tmp_path / "objects")


class FaultyObjects:
    """An object store whose next calls can fail before or after they took effect."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.fail_before: Callable[[str], bool] = lambda call: False
        self.lose_reply: Callable[[str], bool] = lambda call: False

    def get(self, key: str) -> StoredObject | None:
        return self._run("get", lambda: self._inner.get(key))

    def etag(self, key: str) -> str | None:
        return self._run("etag", lambda: self._inner.etag(key))

    def put(self, key: str, data: bytes) -> None:
        return self._run("put", lambda: self._inner.put(key, data))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._run("put_if_absent", lambda: self._inner.put_if_absent(key, data))

    def put_if_match(self, key: str, data: bytes, etag: str) -> str | None:
        return self._run("put_if_match", lambda: self._inner.put_if_match(key, data, etag))

    def list(self, prefix: str) -> list[str]:
        return self._run("list", lambda: self._inner.list(prefix))

    def delete(self, key: str) -> None:
        return self._run("delete", lambda: self._inner.delete(key))

    def _run(self, call: str, work: Callable[[], Any]) -> Any:
        if self.fail_before(call):
            raise TransientError("STORAGE_UNREACHABLE", f"{call} did not arrive")
        result = work()
        if self.lose_reply(call):
            raise TransientError("STORAGE_UNREACHABLE", f"the reply to {call} was lost")
        return result


@pytest.fixture
def faulty_objects(local_objects: LocalObjects) -> FaultyObjects:
    return FaultyObjects(local_objects)
