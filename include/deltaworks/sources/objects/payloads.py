"""Payloads of file events: a task opens the object that each of them names.

An error of the object itself (gone, replaced, unreadable) is an `ObjectError`: the stream records it in quarantine with
`reason` and goes on. An error of the storage is not: the task fails and is tried again.

A refusal may be either. A key that is disabled, a customer's own key or an object's own policy refuses one object, and
whoever may put one could stop a stream by it; a role that lacks a right is refused everything. So an object is to blame
where others can be read: a key beside it, where nothing lies, is answered as missing; or another one of the batch was
read, which its driver knows.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from deltaworks.errors import ConfigError, ContractError, DeltaworksError, TransientError
from deltaworks.events.decompression import ContentTooLarge, DamagedContent, decompress
from deltaworks.events.parse import Payload
from deltaworks.events.reasons import Reason, ReasonCode
from deltaworks.sources.objects.object_names import is_valid_etag, is_valid_key, is_valid_version_id, local_path
from deltaworks.sources.objects.relay.bucket import CHANGED_CODES, MISSING_CODES, bucket_client
from deltaworks.sources.objects.replacement_tags import ReplacementTags
from deltaworks.sources.outages import error_code, is_outage, retry_outages
from deltaworks.specs.sources.objects import FileSourceSpec
from deltaworks.specs.sources.payload import Compression
from deltaworks.specs.storage import StorageSpec, resolved_variables, set_missing_variables

#: Conditions of a fetch that belong to the object and not to the storage: they quarantine it, and the stream goes on.
_OBJECT_ERROR_REASONS = {code.value.upper(): code for code in ReasonCode if code.value.startswith("object_")} | {
    "OBJECT_TOO_LARGE": ReasonCode.TOO_LARGE
}
#: Refusals that are never about one object, but about who asks, or for which bucket.
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
#: For how long an answer counts that a key beside a refused object gave.
_PROBE_CACHE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class FileReference:
    """One object of a batch. `arrived_at_us` is when its store made it, as the file event log has it."""

    seq: int
    key: str
    etag: str
    version_id: str | None = None
    arrived_at_us: int | None = None


class FileOpener:
    """Opens an object inside a task. Carries the values of the storage's references, which a remote worker lacks."""

    def __init__(
        self,
        storage: StorageSpec,
        *,
        compression: Compression,
        max_object_bytes: int | None = None,
        quarantine_refused: bool = False,
        replacement_tags: ReplacementTags | None = None,
    ) -> None:
        """Open the objects of a bucket.

        Args:
            replaced: says what lies in the place of an object that was put anew without erased events.
            quarantine_refused: whether an object that is refused has a payload that says so, instead of an error.
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
        """As a pipeline's source declares it."""
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
            of_object = _are_siblings_readable(storage, reference.key, int(time.time()) // _PROBE_CACHE_SECONDS)
            return Payload(reference.seq, reference.key, None, reason, refusal=None if of_object else error)
        except DeltaworksError as error:
            code = _OBJECT_ERROR_REASONS.get(error.condition)
            if code is None:
                raise
            return Payload(reference.seq, reference.key, None, Reason(code, "", error.message))
        except OSError:
            raise
        except Exception as error:  # whatever its bytes lead a decompressor into, too little memory included
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


class ObjectRefused(ConfigError):
    """The storage refuses to give the object: this one, or all of them."""


class ObjectTooLarge(ObjectError):
    """The object, or what its compressed content grows to, is larger than may be read."""

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
    """The announced object's content, decompressed. Memory is that of the content, whole.

    Args:
        storage: the landing bucket; `key` is relative to its bucket, as notifications give it.
        etag: the tag announced; empty where none was, then any object at the key will do.
        version_id: the version announced: it is read where the object is not the one announced any more.
        compression: as `sources.decompression` has it.
        max_bytes: what the object may hold, as it is stored and decompressed; no more than that is ever held.

    Raises:
        ObjectMissing, ObjectChanged, ObjectUnreadable: OBJECT_MISSING, OBJECT_CHANGED, OBJECT_UNREADABLE.
        ObjectTooLarge: OBJECT_TOO_LARGE.
        ObjectRefused: OBJECT_FORBIDDEN, the object may not be read.
        ConfigError: OBJECT_FORBIDDEN, nothing in the bucket may be read.
        TransientError: STORAGE_UNREACHABLE, it failed for a minute, however often it was asked.
    """
    # Also a log that was written before messages were held to this must not stop its streams.
    path = local_path(Path(storage.prefix), key) if storage.scheme == "file" else None
    usable = is_valid_key(key) if storage.scheme == "s3" else path is not None
    if not (usable and is_valid_etag(etag) and is_valid_version_id(version_id)):
        hint = "Nobody who writes objects names them so: see who may send to the relay's queue."
        raise ObjectUnreadable("OBJECT_UNREADABLE", f"{key!r} with tag {etag!r} cannot be asked for.", hint=hint)
    if path is not None:
        data = _read_local(path, etag, max_bytes)
    else:
        data = _retry_read(
            lambda: _read_announced(storage, key, etag, version_id, max_bytes), f"s3://{storage.bucket}/{key}"
        )
    try:
        return decompress(data, compression, max_bytes=max_bytes)
    except DamagedContent as error:
        raise ObjectUnreadable("OBJECT_UNREADABLE", f"{key}: {error}.", hint="Have it sent again.") from error
    except ContentTooLarge as error:
        raise _too_large(f"{key} {error}") from error


_GRANT_HINT = "Grant s3:GetObject on the objects and s3:ListBucket on the bucket to the stream's role."
_OTHER_KEY_HINT = "Have it sent again under another key."


def _retry_read(call: Callable[[], bytes], where: str) -> bytes:
    try:
        return retry_outages(call, retry_seconds=_RETRY_SECONDS)
    except (ClientError, BotoCoreError) as error:
        if isinstance(error, ParamValidationError):
            raise ObjectUnreadable(
                "OBJECT_UNREADABLE", f"{where} cannot be asked for.", hint=_OTHER_KEY_HINT
            ) from error
        if not is_outage(error):
            raise ConfigError(
                "OBJECT_FORBIDDEN", f"{where} could not be asked for ({type(error).__name__}).", hint=_GRANT_HINT
            ) from error
        raise TransientError(
            "STORAGE_UNREACHABLE",
            f"{where} could not be read for {_RETRY_SECONDS:.0f} s: {error}",
            hint="Run the job again once the bucket's storage answers.",
        ) from error


def _check_size(size: int, max_bytes: int | None, where: str) -> None:
    if max_bytes is not None and size > max_bytes:
        raise _too_large(f"{where} holds {size} bytes or more; at most {max_bytes} are read")


def _too_large(what: str) -> ObjectTooLarge:
    hint = "Raise source.max_object_bytes, or have it sent in parts; then replay it."
    return ObjectTooLarge("OBJECT_TOO_LARGE", f"{what}.", hint=hint)


def _read_announced(storage: StorageSpec, key: str, etag: str, version_id: str | None, max_bytes: int | None) -> bytes:
    try:
        return _read_s3(storage, key, max_bytes, IfMatch=f'"{etag}"') if etag else _read_s3(storage, key, max_bytes)
    except (ObjectMissing, ObjectChanged):
        if version_id is None:
            raise
        try:
            return _read_s3(storage, key, max_bytes, VersionId=version_id)
        except (ObjectMissing, ConfigError):  # removed for good, or versions may not be read
            pass
        raise


def _read_s3(storage: StorageSpec, key: str, max_bytes: int | None, **condition: str) -> bytes:
    try:
        answer = _client(storage, os.getpid()).get_object(Bucket=storage.bucket, Key=key, **condition)
        _check_size(int(answer["ContentLength"]), max_bytes, f"s3://{storage.bucket}/{key}")
        return bytes(answer["Body"].read())
    except ClientError as error:
        meaning = _object_error(error, storage.bucket, key)
        if meaning is None:
            raise
        raise meaning from error


def _object_error(error: ClientError, bucket: str, key: str) -> Exception | None:
    """What S3's refusal says about the object; None where it says nothing about it."""
    code, where = error_code(error), f"s3://{bucket}/{key}"
    if code in MISSING_CODES:
        return ObjectMissing("OBJECT_MISSING", f"{where} is not there.", hint="It was deleted before it was read.")
    if code in CHANGED_CODES:
        hint = "Its newer content has a file event of its own."
        return ObjectChanged("OBJECT_CHANGED", f"{where} was replaced after it was announced.", hint=hint)
    if code == "InvalidObjectState":
        return ObjectUnreadable("OBJECT_UNREADABLE", f"{where} is archived.", hint="Restore it, then replay it.")
    if is_outage(error):
        return None
    # Without the right to list the bucket S3 answers 403 for a missing key too.
    kind = ConfigError if code in _CALLER_ERROR_CODES else ObjectRefused
    return kind("OBJECT_FORBIDDEN", f"{where} may not be read ({code}).", hint=_GRANT_HINT)


@functools.lru_cache(maxsize=256)
def _are_siblings_readable(storage: StorageSpec, key: str, _period: int) -> bool:
    """Whether objects beside the key may be read: what is not there is answered as missing only to who may read it."""
    if storage.scheme == "file":
        return False
    beside = "/".join([*key.split("/")[:-1], f"deltaworks-{uuid.uuid4().hex}"])
    try:
        _client(storage, os.getpid()).get_object(Bucket=storage.bucket, Key=beside)
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
        raise ObjectMissing("OBJECT_MISSING", f"{path} is not there.", hint=hint) from error
    except PermissionError as error:
        hint = "Let the stream's user read it."
        raise ObjectRefused("OBJECT_FORBIDDEN", f"{path} may not be read.", hint=hint) from error
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.ELOOP):
            raise
        raise ObjectMissing("OBJECT_MISSING", f"{path} cannot be there: {error}.", hint="Nothing to do.") from error
    if not matches_etag(data, etag):
        hint = "Its newer content has a file event of its own."
        raise ObjectChanged("OBJECT_CHANGED", f"{path} was replaced after it was announced.", hint=hint)
    return data


def matches_etag(data: bytes, etag: str) -> bool:
    """Whether a local file is the one announced: the tag of an object put in one part is its MD5, and so is a file's.

    Where no tag was announced, any content is.
    """
    return not etag or hashlib.md5(data, usedforsecurity=False).hexdigest() == etag


@functools.lru_cache(maxsize=8)
def _client(storage: StorageSpec, _process: int) -> Any:
    """One client per process and storage: a client inherited through a fork shares its connections."""
    return bucket_client(storage)
