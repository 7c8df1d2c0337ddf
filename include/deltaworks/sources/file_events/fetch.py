"""Reads the object a file event names, inside a Spark task.

What is wrong with the object itself (gone, replaced, unreadable) is an `ObjectError`: the stream records it
in quarantine with `reason` and goes on. What is wrong with the storage is not: the task fails and is tried
again.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import os
import zlib
from pathlib import Path
from typing import Any, ClassVar, Literal

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from deltaworks.errors import ConfigError, ContractError
from deltaworks.sources.outages import error_code, through_outages
from deltaworks.specs.storage import StorageSpec

Compression = Literal["auto", "gzip", "none"]
_GZIP_MAGIC = b"\x1f\x8b"
_PATIENCE_SECONDS = 60.0


class ObjectError(ContractError):
    """An announced object cannot be used, and trying again cannot help. `reason` goes into quarantine."""

    reason: ClassVar[str] = "object_unreadable"


class ObjectMissing(ObjectError):
    """There is no object at this key any more."""

    reason = "object_missing"


class ObjectChanged(ObjectError):
    """The object at this key is not the one announced: it has been overwritten."""

    reason = "object_changed"


class ObjectUnreadable(ObjectError):
    """The object is archived, or its compressed content is damaged or cut off."""

    reason = "object_unreadable"


def open_object(storage: StorageSpec, key: str, etag: str, *, compression: Compression = "auto") -> bytes:
    """The announced object's content, decompressed. Memory is that of the content, whole.

    Args:
        storage: the landing bucket; `key` is relative to its bucket, as notifications give it.
        etag: the tag announced; empty where none was, then any object at the key will do.
        compression: `auto` decompresses what begins as gzip does; `gzip` insists; `none` leaves it.

    Raises:
        ObjectMissing, ObjectChanged, ObjectUnreadable: OBJECT_MISSING, OBJECT_CHANGED, OBJECT_UNREADABLE.
        ConfigError: OBJECT_FORBIDDEN, the bucket may not be read.
    """
    if storage.scheme == "file":
        data = _read_local(Path(storage.prefix) / key, etag)
    else:
        data = through_outages(lambda: _read_s3(storage, key, etag), patience_seconds=_PATIENCE_SECONDS)
    if compression == "gzip" or (compression == "auto" and data.startswith(_GZIP_MAGIC)):
        return _decompressed(data, key)
    return data


def _read_s3(storage: StorageSpec, key: str, etag: str) -> bytes:
    condition = {"IfMatch": f'"{etag}"'} if etag else {}
    try:
        answer = _client(storage, os.getpid()).get_object(Bucket=storage.bucket, Key=key, **condition)
        return bytes(answer["Body"].read())
    except ClientError as error:
        meaning = _meaning(error, storage.bucket, key)
        if meaning is None:
            raise
        raise meaning from error


def _meaning(error: ClientError, bucket: str, key: str) -> Exception | None:
    """What S3's refusal says about the object; None where it says nothing about it."""
    code, where = error_code(error), f"s3://{bucket}/{key}"
    if code in ("NoSuchKey", "404"):
        return ObjectMissing("OBJECT_MISSING", f"{where} is not there.", hint="It was deleted before it was read.")
    if code in ("PreconditionFailed", "412"):
        hint = "Its newer content has a file event of its own."
        return ObjectChanged("OBJECT_CHANGED", f"{where} was replaced after it was announced.", hint=hint)
    if code == "InvalidObjectState":
        return ObjectUnreadable("OBJECT_UNREADABLE", f"{where} is archived.", hint="Restore it, then replay it.")
    if code in ("AccessDenied", "403", "NoSuchBucket", "InvalidAccessKeyId", "SignatureDoesNotMatch"):
        # Without the right to list the bucket S3 answers 403 for a missing key too.
        hint = "Grant s3:GetObject on the objects and s3:ListBucket on the bucket to the stream's role."
        return ConfigError("OBJECT_FORBIDDEN", f"{where} may not be read ({code}).", hint=hint)
    return None


def _read_local(path: Path, etag: str) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        hint = "It was deleted before it was read."
        raise ObjectMissing("OBJECT_MISSING", f"{path} is not there.", hint=hint) from error
    # The tag of an object put in one part is its MD5; local files are announced the same way.
    if etag and hashlib.md5(data, usedforsecurity=False).hexdigest() != etag:
        hint = "Its newer content has a file event of its own."
        raise ObjectChanged("OBJECT_CHANGED", f"{path} was replaced after it was announced.", hint=hint)
    return data


def _decompressed(data: bytes, key: str) -> bytes:
    try:
        return gzip.decompress(data)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ObjectUnreadable(
            "OBJECT_UNREADABLE", f"{key}: its gzip content is damaged: {error}.", hint="Have it sent again."
        ) from error


@functools.lru_cache(maxsize=8)
def _client(storage: StorageSpec, _process: int) -> Any:
    """One client per process and storage: a client inherited through a fork shares its connections."""
    config = Config(
        s3={"addressing_style": "path" if storage.path_style else "auto"},
        connect_timeout=5,
        read_timeout=60,
        retries={"mode": "standard", "max_attempts": 5},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return boto3.session.Session().client("s3", config=config, **storage.boto3_options())
