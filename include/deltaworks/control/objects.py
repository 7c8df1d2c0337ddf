"""Small control objects on shared storage, with conditional writes.

If several writers call `put_if_absent` or `put_if_match` at the same time, one of them succeeds. Both are atomic on S3
(conditional requests) and on local disk (hard link, lock file).

- A lost reply is not a failure: the object is read back, and equal bytes mean that our write succeeded. Callers must
  therefore include something unique to the writer.
- S3 also refuses a conditional write that races with another request on the key, regardless of that request's outcome.
  If the stored object does not explain the refusal, the write is retried.
- On local disk a written object survives a power failure, its directory entry included.

boto3 sessions share one cache of service descriptions per process: to create a client, botocore parses a description of
the service (1 MB of JSON for S3), once per session, which is most of the cost of a new client. Each session has its own
configuration and credentials, and can be used in its own thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from deltaworks.control.background import attempts
from deltaworks.errors import TransientError
from deltaworks.specs.storage import StorageSpec

if TYPE_CHECKING:
    import boto3


#: Attempts of a conditional write that was refused although its condition holds.
_CONDITIONAL_ATTEMPTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTimeouts:
    """Timeouts, attempts and connections of an S3 client."""

    connect_seconds: float = 5.0
    read_seconds: float = 20.0
    max_attempts: int = 5
    max_connections: int = 10


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object's bytes and ETag."""

    data: bytes
    etag: str


class ObjectStore(Protocol):
    """Objects by key, relative to a root. Safe for concurrent use from threads and processes."""

    def get(self, key: str) -> StoredObject | None:
        """Returns the object, or None if it does not exist."""

    def etag(self, key: str) -> str | None:
        """Returns the ETag that `get` would return, without reading the object; None if it does not exist."""

    def put(self, key: str, data: bytes) -> None:
        """Creates or replaces the object."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Creates the object; returns False if it already exists with other bytes.

        Raises:
            TransientError: the storage kept refusing the write although no other object exists.
        """

    def put_if_match(self, key: str, data: bytes, etag: str) -> str | None:
        """Replaces the object if its ETag is `etag`; returns the new ETag, or None if the object has another one or is
        missing.

        Raises:
            TransientError: the storage kept refusing the write although the version matches.
        """

    def list(self, prefix: str) -> list[str]:
        """Returns the keys with a prefix, sorted."""

    def delete(self, key: str) -> None:
        """Deletes the object, if it exists."""


def open_objects(storage: StorageSpec, *, timeouts: ClientTimeouts | None = None) -> ObjectStore:
    """Opens the object store of a storage spec. Timeouts do not apply to local disk."""
    if storage.scheme == "s3":
        return S3Objects(storage, timeouts=timeouts)
    return LocalObjects(Path(storage.prefix))


class S3Objects:
    """Objects in an S3 bucket."""

    def __init__(self, storage: StorageSpec, *, timeouts: ClientTimeouts | None = None) -> None:
        from botocore.config import Config

        timeouts = timeouts or ClientTimeouts()
        config = Config(
            s3={"addressing_style": "path" if storage.path_style else "auto"},
            connect_timeout=timeouts.connect_seconds,
            read_timeout=timeouts.read_seconds,
            retries={"mode": "standard", "max_attempts": timeouts.max_attempts},
            max_pool_connections=timeouts.max_connections,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        self._client: Any = aws_session().client("s3", config=config, **storage.boto3_options())
        self._bucket = storage.bucket
        self._prefix = f"{storage.prefix}/" if storage.prefix else ""

    def get(self, key: str) -> StoredObject | None:
        from botocore.exceptions import ClientError

        with _translate_client_errors("read", key):
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)
            except ClientError as error:
                if _code(error) in ("NoSuchKey", "404"):
                    return None
                raise
            return StoredObject(answer["Body"].read(), answer["ETag"])

    def etag(self, key: str) -> str | None:
        from botocore.exceptions import ClientError

        with _translate_client_errors("read the ETag of", key):
            try:
                return str(self._client.head_object(Bucket=self._bucket, Key=self._prefix + key)["ETag"])
            except ClientError as error:
                if _code(error) in ("NoSuchKey", "404"):
                    return None
                raise

    def put(self, key: str, data: bytes) -> None:
        self._put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        for _ in _attempts():
            if self._put(key, data, IfNoneMatch="*") is not None:
                return True
            stored = self.get(key)
            if stored is not None:
                return stored.data == data
        raise _unexplained_refusal(key, "no such object exists")

    def put_if_match(self, key: str, data: bytes, etag: str) -> str | None:
        for _ in _attempts():
            written = self._put(key, data, IfMatch=etag)
            if written is not None:
                return written
            stored = self.get(key)
            if stored is None:
                return None
            if stored.data == data:
                return stored.etag
            if stored.etag != etag:
                return None
        raise _unexplained_refusal(key, "the stored version matches")

    def _put(self, key: str, data: bytes, **condition: str) -> str | None:
        """Writes the object; returns its ETag, or None if the condition failed or another write raced with it."""
        from botocore.exceptions import ClientError

        with _translate_client_errors("write", key):
            try:
                answer = self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=data, **condition)
            except ClientError as error:
                # S3 answers 409 to a conditional write that races with another request on the key, including a delete.
                if _code(error) in ("PreconditionFailed", "412", "ConditionalRequestConflict", "409", "NoSuchKey"):
                    return None
                raise
            return str(answer["ETag"])

    def list(self, prefix: str) -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix + prefix
        )
        with _translate_client_errors("list", prefix):
            stored = [item["Key"] for page in pages for item in page.get("Contents", [])]
        return sorted(key.removeprefix(self._prefix) for key in stored)

    def delete(self, key: str) -> None:
        with _translate_client_errors("delete", key):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)


def _attempts() -> Iterator[int]:
    return attempts(_CONDITIONAL_ATTEMPTS, first_wait_seconds=0.15, max_wait_seconds=3.0)


def _unexplained_refusal(key: str, stored_state: str) -> TransientError:
    return TransientError(
        "STORAGE_REFUSED",
        f"{_CONDITIONAL_ATTEMPTS} conditional writes of {key} were all refused, though {stored_state}.",
        hint=(
            "Another process writes and deletes this key continuously, or the store does not support conditional "
            "writes. Run it again, then check which process writes there."
        ),
    )


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


@contextlib.contextmanager
def _translate_client_errors(verb: str, key: str) -> Iterator[None]:
    """Converts boto3 errors, including connection errors, to TransientErrors."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise TransientError(
            "STORAGE_REFUSED" if isinstance(error, ClientError) else "STORAGE_UNREACHABLE",
            f"Could not {verb} {key}: {error}.",
            hint="Check the storage's endpoint, keys and permissions in include/environments.",
        ) from error


class LocalObjects:
    """Objects as files. Created by hard link and replaced under a lock file, so readers never see partial content."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def get(self, key: str) -> StoredObject | None:
        try:
            data = (self._root / key).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        return StoredObject(data, hashlib.sha256(data).hexdigest())

    def etag(self, key: str) -> str | None:
        try:
            with (self._root / key).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def put(self, key: str, data: bytes) -> None:
        with self._temporary_file(key, data) as temporary:
            temporary.replace(self._root / key)
            _sync_folder(temporary.parent)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        while True:
            with self._temporary_file(key, data) as temporary:
                try:
                    os.link(temporary, self._root / key)
                except FileExistsError:
                    stored = self.get(key)
                    if stored is None:  # deleted concurrently
                        continue
                    # The writer may have died before it synced the folder: sync it before others rely on the object.
                    _sync_folder(temporary.parent)
                    return stored.data == data
                _sync_folder(temporary.parent)
            return True

    def put_if_match(self, key: str, data: bytes, etag: str) -> str | None:
        target = self._root / key
        _make_folder(target.parent)
        with (target.parent / f".{target.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            stored = self.get(key)
            if stored is None or (stored.etag != etag and stored.data != data):
                return None
            self.put(key, data)
        return hashlib.sha256(data).hexdigest()

    @contextlib.contextmanager
    def _temporary_file(self, key: str, data: bytes) -> Iterator[Path]:
        target = self._root / key
        _make_folder(target.parent)
        temporary = target.parent / f".{target.name}.{uuid.uuid4().hex}"
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    def list(self, prefix: str) -> list[str]:
        folder = self._root / prefix.rpartition("/")[0]
        stored = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
        keys = (path.relative_to(self._root).as_posix() for path in stored)
        return sorted(key for key in keys if key.startswith(prefix))

    def delete(self, key: str) -> None:
        path = self._root / key
        try:
            path.unlink()
        except FileNotFoundError:
            return
        _sync_folder(path.parent)


def _make_folder(folder: Path) -> None:
    """Creates a folder and its parents, and syncs each new directory entry."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Makes directory entries durable: syncing a file persists its bytes, not its name."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def aws_session() -> boto3.session.Session:
    """Returns a new boto3 session. Thread-safe, unlike boto3's default session."""
    import boto3
    from botocore.session import Session

    session = Session()
    session.register_component("data_loader", _shared_data_loader(session.get_config_variable("data_path")))
    return boto3.session.Session(botocore_session=session)


@cache
def _shared_data_loader(data_path: str | None) -> Any:
    """Returns the loader of service descriptions; its cache lives as long as the process."""
    from botocore.loaders import Loader

    class SharedLoader(Loader):
        """A loader whose search path cannot change; otherwise each boto3 session would append a folder to it."""

        @property
        def search_paths(self) -> list[str]:
            return [*super().search_paths]

    return SharedLoader(extra_search_paths=data_path.split(":") if data_path else None)
