"""Opens the objects of file events inside tasks and returns their content as payloads.

An error of the object (missing, replaced, unreadable) is an `ObjectError`: the stream quarantines it with its `reason`
and continues. For a storage error the task fails and is retried. An object with another ETag than announced counts as
replaced, unless an erasure rewrote it without the erased events. An erasure records the replacement before it rewrites
the object, so the record always exists.

A denied request may concern one object (a disabled key, a customer's key, an object policy) or everything that the
stream's role requests. Without this distinction, one object could stop a stream. So the object counts as the cause if
other objects can be read: a probe for a missing sibling key returns "not found", or the driver knows that another
object of the batch was read.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from deltaworks.control.objects import open_objects
from deltaworks.control.records.reprocess import Replacements
from deltaworks.errors import ConfigError, ContractError, DeltaworksError, TransientError
from deltaworks.events.chunks import Payload
from deltaworks.events.decompression import ContentTooLarge, DamagedContent, decompress
from deltaworks.events.reasons import Reason, ReasonCode
from deltaworks.sources.objects.object_names import is_valid_etag, is_valid_key, is_valid_version_id, local_path
from deltaworks.sources.objects.relay.bucket import CHANGED_CODES, MISSING_CODES, bucket_client
from deltaworks.sources.outages import error_code, is_outage, retry_outages
from deltaworks.specs.record_sources import Compression
from deltaworks.specs.sources import FileSourceSpec
from deltaworks.specs.storage import StorageSpec, resolved_variables, set_missing_variables

_LOCK: Final = threading.Lock()


class ReplacementTags:
    """Looks up replaced objects of one bucket. Contains resolved secrets, because remote workers lack the variables."""

    def __init__(self, lake: StorageSpec, bucket: str) -> None:
        self._lake = lake.model_dump_json()
        self._bucket = bucket
        self._variables = resolved_variables(lake)

    def tags_for(self, key: str, etag: str) -> list[str]:
        """Returns the ETags that a rewritten object may have now, the latest first.

        Raises:
            ContractError: ERASURE_UNREADABLE.
            TransientError: the lake does not answer.
        """
        if not etag:
            return []
        set_missing_variables(self._variables)
        with _LOCK:
            return _replacements(self._lake, os.getpid()).refresh().successors(self._bucket, key, etag)


@functools.lru_cache(maxsize=4)
def _replacements(lake: str, _process: int) -> Replacements:
    """Returns the instance of this process for a lake. Cached."""
    return Replacements(open_objects(StorageSpec.model_validate_json(lake)))


#: Error conditions that concern the object, not the storage: they quarantine it, and the stream continues.
_OBJECT_ERROR_REASONS = {code.value.upper(): code for code in ReasonCode if code.value.startswith("object_")} | {
    "OBJECT_TOO_LARGE": ReasonCode.TOO_LARGE
}
#: Error codes that concern the caller or the bucket, never a single object.
_CALLER_ERROR_CODES = frozenset(
    {
        "AccountProblem",
        "AllAccessDisabled",
        "AuthorizationHeaderMalformed",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "NoSuchBucket",
        "NotSignedUp",
        "PermanentRedirect",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
_RETRY_SECONDS = 60.0
#: How long the result of a probe for a sibling key is valid.
_PROBE_CACHE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class FileReference:
    """An object that a batch reads. `arrived_at_us` is the store's time of the object, from the file event log."""

    seq: int
    key: str
    etag: str
    version_id: str | None = None
    arrived_at_us: int | None = None


class FileOpener:
    """Opens objects inside a task. Contains the resolved secrets of the storage, because remote workers lack the
    variables.
    """

    def __init__(
        self,
        storage: StorageSpec,
        *,
        compression: Compression,
        max_object_bytes: int | None = None,
        quarantine_refused: bool = False,
        replacement_tags: ReplacementTags | None = None,
    ) -> None:
        """Creates an opener for the objects of a bucket.

        Args:
            replacement_tags: finds the current ETag of objects that an erasure rewrote without the erased events.
            quarantine_refused: return a rejected payload for an object that may not be read, instead of raising.
        """
        self._refused_quarantine = quarantine_refused
        self._storage = storage.model_dump_json()
        self._max_bytes = max_object_bytes
        self._compression = compression
        self._replacement_tags = replacement_tags
        self._variables = resolved_variables(storage)

    @classmethod
    def for_source(
        cls, landing: StorageSpec, source: FileSourceSpec, *, lake: StorageSpec, quarantine_refused: bool = False
    ) -> Self:
        """Creates the opener for a pipeline's source."""
        return cls(
            landing.with_bucket(source.bucket),
            compression=source.compression,
            max_object_bytes=source.max_object_bytes,
            quarantine_refused=quarantine_refused,
            replacement_tags=ReplacementTags(lake, source.bucket),
        )

    def __call__(self, reference: FileReference) -> Payload:
        return replace(self._open(reference), arrived_at_us=reference.arrived_at_us)

    def _open(self, reference: FileReference) -> Payload:
        set_missing_variables(self._variables)
        storage = StorageSpec.model_validate_json(self._storage)
        try:
            data = self._read(storage, reference)
        except ObjectRefused as error:
            if not self._refused_quarantine:
                raise
            reason = Reason(ReasonCode.OBJECT_UNREADABLE, "", error.message)
            is_object_error = _are_siblings_readable(storage, reference.key, int(time.time()) // _PROBE_CACHE_SECONDS)
            return Payload(reference.seq, reference.key, None, reason, refusal=None if is_object_error else error)
        except DeltaworksError as error:
            code = _OBJECT_ERROR_REASONS.get(error.condition)
            if code is None:
                raise
            return Payload(reference.seq, reference.key, None, Reason(code, "", error.message))
        except OSError:
            raise
        except Exception as error:  # a decompressor may raise anything, including MemoryError
            detail = f"opening it failed: {type(error).__name__}"
            return Payload(reference.seq, reference.key, None, Reason(ReasonCode.OBJECT_UNREADABLE, "", detail))
        return Payload(reference.seq, reference.key, data)

    def _read(self, storage: StorageSpec, reference: FileReference) -> bytes:
        options: dict[str, Any] = {"compression": self._compression, "max_bytes": self._max_bytes}
        key, etag = reference.key, reference.etag
        try:
            return open_object(storage, key, etag, version_id=reference.version_id, **options)
        except (ObjectMissing, ObjectChanged):
            for tag in () if self._replacement_tags is None else self._replacement_tags.tags_for(key, etag):
                with contextlib.suppress(ObjectMissing, ObjectChanged):
                    return open_object(storage, key, tag, **options)
            raise


class ObjectError(ContractError):
    """Raised if an announced object cannot be used and a retry cannot help. `reason` goes to quarantine."""

    reason: ClassVar[str] = "object_unreadable"


class ObjectMissing(ObjectError):
    """Raised if the object no longer exists."""

    reason = "object_missing"


class ObjectChanged(ObjectError):
    """Raised if the object was overwritten after it was announced."""

    reason = "object_changed"


class ObjectUnreadable(ObjectError):
    """Raised if the object is archived, or its compressed content is damaged or truncated."""

    reason = "object_unreadable"


class ObjectRefused(ConfigError):
    """Raised if the storage denies reading the object; possibly it denies all objects."""


class ObjectTooLarge(ObjectError):
    """Raised if the object exceeds the size limit, stored or decompressed."""

    reason = "too_large"


def open_object(
    storage: StorageSpec,
    key: str,
    etag: str,
    *,
    version_id: str | None = None,
    compression: Compression = "auto",
    max_bytes: int | None = None,
) -> bytes:
    """Returns the decompressed content of the announced object. Holds the complete content in memory.

    Args:
        storage: the landing bucket; `key` is relative to the bucket, as in notifications.
        etag: the announced ETag; if empty, any object at the key is accepted.
        version_id: the announced version, read if the current object is not the announced one.
        compression: as in `events.decompression`.
        max_bytes: limit of the stored and of the decompressed size; never exceeded in memory.

    Raises:
        ObjectMissing, ObjectChanged, ObjectUnreadable: OBJECT_MISSING, OBJECT_CHANGED, OBJECT_UNREADABLE.
        ObjectTooLarge: OBJECT_TOO_LARGE.
        ObjectRefused: OBJECT_FORBIDDEN, the object may not be read.
        ConfigError: OBJECT_FORBIDDEN, nothing in the bucket may be read.
        TransientError: STORAGE_UNREACHABLE, all attempts failed for a minute.
    """
    # Logs may contain names that were written before messages were validated; they must not stop streams.
    path = local_path(Path(storage.prefix), key) if storage.scheme == "file" else None
    is_valid = is_valid_key(key) if storage.scheme == "s3" else path is not None
    if not (is_valid and is_valid_etag(etag) and is_valid_version_id(version_id)):
        hint = "No store creates such names. Check who may send to the relay's queue."
        raise ObjectUnreadable(
            "OBJECT_UNREADABLE", f"{key!r} with ETag {etag!r} is not a valid object reference.", hint=hint
        )
    if path is not None:
        data = _read_local(path, etag, max_bytes)
    else:
        data = _retry_read(
            lambda: _read_announced(storage, key, etag, version_id, max_bytes), f"s3://{storage.bucket}/{key}"
        )
    try:
        return decompress(data, compression, max_bytes=max_bytes)
    except DamagedContent as error:
        raise ObjectUnreadable(
            "OBJECT_UNREADABLE", f"{key}: {error}.", hint="Ask the producer to send it again."
        ) from error
    except ContentTooLarge as error:
        raise _too_large(f"{key} {error}") from error


_GRANT_HINT = "Grant s3:GetObject on the objects and s3:ListBucket on the bucket to the stream's role."
_OTHER_KEY_HINT = "Ask the producer to send it again under another key."


def _retry_read(call: Callable[[], bytes], where: str) -> bytes:
    try:
        return retry_outages(call, retry_seconds=_RETRY_SECONDS)
    except (ClientError, BotoCoreError) as error:
        if isinstance(error, ParamValidationError):
            raise ObjectUnreadable(
                "OBJECT_UNREADABLE", f"{where} is not a valid object reference.", hint=_OTHER_KEY_HINT
            ) from error
        if not is_outage(error):
            raise ConfigError(
                "OBJECT_FORBIDDEN", f"{where} could not be requested ({type(error).__name__}).", hint=_GRANT_HINT
            ) from error
        raise TransientError(
            "STORAGE_UNREACHABLE", f"{where} could not be read for {_RETRY_SECONDS:.0f} s: {error}"
        ) from error


def _check_size(size: int, max_bytes: int | None, where: str) -> None:
    if max_bytes is not None and size > max_bytes:
        raise _too_large(f"{where} holds {size} bytes or more; at most {max_bytes} are read")


def _too_large(what: str) -> ObjectTooLarge:
    hint = "Raise source.max_object_bytes and replay it, or ask the producer to send it in parts."
    return ObjectTooLarge("OBJECT_TOO_LARGE", f"{what}.", hint=hint)


def _read_announced(storage: StorageSpec, key: str, etag: str, version_id: str | None, max_bytes: int | None) -> bytes:
    try:
        return _read_s3(storage, key, max_bytes, IfMatch=f'"{etag}"') if etag else _read_s3(storage, key, max_bytes)
    except (ObjectMissing, ObjectChanged):
        if version_id is None:
            raise
        try:
            return _read_s3(storage, key, max_bytes, VersionId=version_id)
        except (ObjectMissing, ConfigError):  # the version was deleted, or versions may not be read
            pass
        raise


def _read_s3(storage: StorageSpec, key: str, max_bytes: int | None, **condition: str) -> bytes:
    try:
        response = _client(storage, os.getpid()).get_object(Bucket=storage.bucket, Key=key, **condition)
        _check_size(int(response["ContentLength"]), max_bytes, f"s3://{storage.bucket}/{key}")
        return bytes(response["Body"].read())
    except ClientError as error:
        object_error = _object_error(error, storage.bucket, key)
        if object_error is None:
            raise
        raise object_error from error


def _object_error(error: ClientError, bucket: str, key: str) -> Exception | None:
    """Maps S3's error code to an error of the object. Returns None if the code does not concern the object."""
    code, where = error_code(error), f"s3://{bucket}/{key}"
    if code in MISSING_CODES:
        return ObjectMissing("OBJECT_MISSING", f"{where} does not exist.", hint="It was deleted before it was read.")
    if code in CHANGED_CODES:
        hint = "Its newer content has its own file event."
        return ObjectChanged("OBJECT_CHANGED", f"{where} was replaced after it was announced.", hint=hint)
    if code == "InvalidObjectState":
        return ObjectUnreadable("OBJECT_UNREADABLE", f"{where} is archived.", hint="Restore it, then replay it.")
    if is_outage(error):
        return None
    # Without s3:ListBucket, S3 answers 403 for a missing key too.
    kind = ConfigError if code in _CALLER_ERROR_CODES else ObjectRefused
    return kind("OBJECT_FORBIDDEN", f"{where} may not be read ({code}).", hint=_GRANT_HINT)


@functools.lru_cache(maxsize=256)
def _are_siblings_readable(storage: StorageSpec, key: str, _period: int) -> bool:
    """Returns whether other keys in the object's folder may be read: only a caller with read permission gets "not
    found" for a missing key.
    """
    if storage.scheme == "file":
        return False
    sibling = "/".join([*key.split("/")[:-1], f"deltaworks-{uuid.uuid4().hex}"])
    try:
        _client(storage, os.getpid()).get_object(Bucket=storage.bucket, Key=sibling)
    except ClientError as error:
        return error_code(error) in MISSING_CODES
    except BotoCoreError:
        return False
    return True


def _read_local(path: Path, etag: str, max_bytes: int | None) -> bytes:
    try:
        _check_size(path.stat().st_size, max_bytes, str(path))
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        hint = "It was deleted before it was read."
        raise ObjectMissing("OBJECT_MISSING", f"{path} does not exist.", hint=hint) from error
    except PermissionError as error:
        hint = "Grant read permission to the stream's user."
        raise ObjectRefused("OBJECT_FORBIDDEN", f"{path} may not be read.", hint=hint) from error
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.ELOOP):
            raise
        raise ObjectMissing("OBJECT_MISSING", f"{path} cannot exist: {error}.", hint="No action needed.") from error
    if not matches_etag(data, etag):
        hint = "Its newer content has its own file event."
        raise ObjectChanged("OBJECT_CHANGED", f"{path} was replaced after it was announced.", hint=hint)
    return data


def matches_etag(data: bytes, etag: str) -> bool:
    """Returns whether local data has the announced ETag, which for a single-part object is the MD5 of its content.

    Without an announced ETag, any content matches.
    """
    return not etag or hashlib.md5(data, usedforsecurity=False).hexdigest() == etag


@functools.lru_cache(maxsize=8)
def _client(storage: StorageSpec, _process: int) -> Any:
    """Returns the S3 client of this process for a storage. A client inherited through a fork would use its parent's
    connections.
    """
    return bucket_client(storage)
