"""Small control objects on shared storage, with the two conditional writes everything here rests on.

`put_if_absent` lets one of many writers create an object; `put_if_match` lets one of many replace it. Both are
atomic on S3 (conditional requests) and on local disk (hard link, lock file). A reply that is lost on the way is
not a failure: the object is read back, and bytes equal to ours mean that our own write landed; callers therefore
put something unique to the writer into what they write. A refusal that what is stored does not bear out is no
answer either: S3 refuses a conditional write that meets another request on its key, whatever that one comes to, so
the write is tried again. On local disk what was written is there after a power failure, its name included.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from deltaworks.control.retry import attempts
from deltaworks.errors import TransientError
from deltaworks.specs.storage import StorageSpec

#: How often a conditional write is tried that was refused though its condition holds.
_CONDITIONAL_ATTEMPTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTimeouts:
    """How long a client waits for a storage on the network, how often it tries, and how many requests run at once."""

    connect_seconds: float = 5.0
    read_seconds: float = 20.0
    max_attempts: int = 5
    max_connections: int = 10


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object's bytes and the tag that names this version of it."""

    data: bytes
    etag: str


class ObjectStore(Protocol):
    """Objects by key below a root. Safe to use from several threads and processes."""

    def get(self, key: str) -> StoredObject | None:
        """The object, or None where there is none."""

    def etag(self, key: str) -> str | None:
        """The tag that `get` would give, without the object's bytes; None where there is none."""

    def put(self, key: str, data: bytes) -> None:
        """Write or replace the object."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object; False when it was there already with other bytes.

        Raises:
            TransientError: the storage refused for as long as it was asked, with no other object there.
        """

    def put_if_match(self, key: str, data: bytes, etag: str) -> str | None:
        """Replace the version `etag`; the new tag, or None when another version is there now, or none.

        Raises:
            TransientError: the storage refused for as long as it was asked, with that very version there.
        """

    def list(self, prefix: str) -> list[str]:
        """The keys below `prefix`, sorted."""

    def delete(self, key: str) -> None:
        """Remove the object; nothing happens where there is none."""


def open_objects(storage: StorageSpec, *, timeouts: ClientTimeouts | None = None) -> ObjectStore:
    """The object store a storage spec describes. Local disk is never waited for."""
    if storage.scheme == "s3":
        return S3Objects(storage, timeouts=timeouts)
    return LocalObjects(Path(storage.prefix))


class S3Objects:
    """Objects in a bucket, by conditional requests."""

    def __init__(self, storage: StorageSpec, *, timeouts: ClientTimeouts | None = None) -> None:
        from botocore.config import Config

        from deltaworks.control.aws_sessions import aws_session

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

        with _translate_client_errors("look at", key):
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
        raise _unexplained_refusal(key, "nothing is there")

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
        raise _unexplained_refusal(key, "the version to be replaced is there")

    def _put(self, key: str, data: bytes, **condition: str) -> str | None:
        """The tag written, or None when it was refused for its condition, or for another write at the same time."""
        from botocore.exceptions import ClientError

        with _translate_client_errors("write", key):
            try:
                answer = self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=data, **condition)
            except ClientError as error:
                # 409 is S3's answer to a conditional write racing another request on the same key, a delete among them.
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
        hint="Others write and delete the same key without pause, or the store keeps no conditions: run it again, "
        "then see who writes there.",
    )


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


@contextlib.contextmanager
def _translate_client_errors(verb: str, key: str) -> Iterator[None]:
    """Turns every failure of boto3, a connection that fails among them, into an error of ours."""
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
    """Objects as files: created by hard link, replaced under a lock file, so never seen half-written."""

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
                    if stored is None:  # deleted in between
                        continue
                    # Of a writer that died before it synced the folder: only then may others rest on it.
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
    """Make a folder and those above it; one that had to be made is as durable as what is written into it."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Have the names in a folder survive a power failure: syncing a file makes its bytes durable, not its name."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
