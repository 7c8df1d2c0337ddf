"""Access to landed objects: lists objects and their old versions, reads, replaces and deletes them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from botocore.exceptions import ClientError

from deltaworks.errors import ConfigError
from deltaworks.sources.objects.object_names import local_path
from deltaworks.sources.objects.payloads import matches_etag
from deltaworks.sources.objects.relay.bucket import (
    CHANGED_CODES,
    FORBIDDEN_CODES,
    MISSING_CODES,
    bucket_client,
    list_pages,
)
from deltaworks.sources.outages import error_code, retry_outages
from deltaworks.specs.sources import key_matcher
from deltaworks.specs.storage import StorageSpec

_MAX_OUTAGE_SECONDS: Final = 120.0
#: Name of the object metadata with the number of the replacement record.
REPLACEMENT_METADATA: Final = "deltaworks-replacement"
_CONFLICT = ("ConditionalRequestConflict", "409")
_UNSUPPORTED = ("NotImplemented", "MethodNotAllowed", "501", "405")
#: Properties that are preserved when an object is replaced. GetObject and PutObject use the same names.
_PRESERVED_PROPERTIES: Final = (
    "CacheControl",
    "ContentDisposition",
    "ContentEncoding",
    "ContentLanguage",
    "ContentType",
    "SSEKMSKeyId",
    "ServerSideEncryption",
    "StorageClass",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedObject:
    """One object, or an old version of one.

    Args:
        version_id: set in versioned buckets.
        is_current: whether it is the current object of its key.
        is_deleted: whether the key has a delete marker.
    """

    bucket: str
    key: str
    etag: str
    size: int
    landed_at: datetime
    version_id: str | None = None
    is_current: bool = True
    is_deleted: bool = False

    @property
    def anonymous_name(self) -> str:
        """A name of the object without its key, which may contain personal data."""
        version = self.version_id or self.etag if not self.is_current else ""
        digest = hashlib.sha256(f"{self.bucket}/{self.key}".encode()).hexdigest()[:16]
        return f"{self.bucket} sha256:{digest}" + (f" version {version}" if version else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectState:
    """The current object of a key. `replacement` is the number of the record that wrote it; None for producers'
    objects.
    """

    etag: str
    version_id: str | None
    replacement: int | None


class LandingStore:
    """The buckets of one landing storage. Not thread-safe."""

    def __init__(self, storage: StorageSpec) -> None:
        self._storage = storage
        self._client: Any = bucket_client(storage) if storage.scheme == "s3" else None
        self._versioned: dict[str, bool] = {}

    def list_objects(self, bucket: str, *, prefix: str = "", glob: str | None = None) -> Iterator[LandedObject]:
        """Yields every object with a prefix in key order, followed by all old versions.

        Raises:
            ConfigError: LISTING_REFUSED, ERASURE_LANDING_REFUSED.
        """
        for page in list_pages(self._storage, bucket, prefix=prefix, glob=glob, retry_seconds=_MAX_OUTAGE_SECONDS):
            for event in page:
                yield LandedObject(
                    bucket=bucket, key=event.key, etag=event.etag, size=event.size, landed_at=event.event_time
                )
        if self._client is not None and self._keeps_versions(bucket):
            fits = key_matcher(glob)
            yield from (version for version in self._old_versions(bucket, prefix) if fits(version.key))

    def read(self, landed: LandedObject) -> tuple[bytes, dict[str, Any]] | None:
        """Returns an object's bytes and properties; None if it is missing or was replaced.

        Raises:
            ConfigError: ERASURE_LANDING_REFUSED.
        """
        if self._client is None:
            path = self._local_path(landed.key)
            try:
                data = b"" if path is None else path.read_bytes()
            except FileNotFoundError:
                return None
            return (data, {}) if matches_etag(data, landed.etag) else None
        condition = {"VersionId": landed.version_id} if not landed.is_current else {"IfMatch": f'"{landed.etag}"'}

        def call() -> tuple[bytes, dict[str, Any]]:
            answer = self._client.get_object(Bucket=landed.bucket, Key=landed.key, **condition)
            return bytes(answer["Body"].read()), answer

        try:
            data, answer = retry_outages(call, retry_seconds=_MAX_OUTAGE_SECONDS)
        except ClientError as error:
            if error_code(error) in (*MISSING_CODES, *CHANGED_CODES):
                return None
            raise _access_error(error, landed.bucket, "read") from error
        properties = {name: answer[name] for name in _PRESERVED_PROPERTIES if answer.get(name)}
        return data, properties | {
            "Metadata": dict(answer.get("Metadata") or {}),
            "VersionId": _version_id(answer),
            "TagCount": int(answer.get("TagCount") or 0),
        }

    def put(self, landed: LandedObject, data: bytes, properties: dict[str, Any], *, number: int) -> ObjectState | None:
        """Replaces the content of an object; returns None if it is missing or was replaced.

        Raises:
            ConfigError: ERASURE_LANDING_REFUSED.
        """
        if self._client is None:
            return self._put_local(landed, data)
        more = {name: value for name, value in properties.items() if name in _PRESERVED_PROPERTIES}
        if properties.get("TagCount"):
            more["Tagging"] = self._tags(landed)
        metadata = {**properties.get("Metadata", {}), REPLACEMENT_METADATA: str(number)}
        request = {"Bucket": landed.bucket, "Key": landed.key, "Body": data, "Metadata": metadata, **more}

        def call() -> dict[str, Any]:
            state = self.object_state(landed.bucket, landed.key)
            if state is None or state.etag != landed.etag:
                # The reply of an earlier put may have been lost.
                if state is not None and state.replacement == number:
                    return {"ETag": state.etag, "VersionId": state.version_id}
                return {}
            return self._put_if_match(request, landed.etag)

        try:
            answer = retry_outages(call, retry_seconds=_MAX_OUTAGE_SECONDS)
        except ClientError as error:
            if error_code(error) in (*MISSING_CODES, *CHANGED_CODES, *_CONFLICT):
                return None
            raise _access_error(error, landed.bucket, "put") from error
        if not answer:
            return None
        return ObjectState(etag=str(answer["ETag"]).strip('"'), version_id=_version_id(answer), replacement=number)

    def _put_if_match(self, request: dict[str, Any], etag: str) -> dict[str, Any]:
        try:
            return dict(self._client.put_object(**request, IfMatch=f'"{etag}"'))
        except ClientError as error:
            if error_code(error) not in _UNSUPPORTED:
                raise
            # Without conditional puts the ETag was at least checked immediately before.
            return dict(self._client.put_object(**request))

    def object_state(self, bucket: str, key: str) -> ObjectState | None:
        """Returns the current object of a key, or None."""
        if self._client is None:
            path = self._local_path(key)
            if path is None or not path.is_file():
                return None
            return ObjectState(etag=_md5(path.read_bytes()), version_id=None, replacement=None)
        try:
            answer = self._client.head_object(Bucket=bucket, Key=key)
        except ClientError as error:
            if error_code(error) in MISSING_CODES:
                return None
            raise
        number = (answer.get("Metadata") or {}).get(REPLACEMENT_METADATA, "")
        return ObjectState(
            etag=str(answer["ETag"]).strip('"'),
            version_id=_version_id(answer),
            replacement=int(number) if number.isdigit() else None,
        )

    def delete_version(self, bucket: str, key: str, version_id: str) -> None:
        """Deletes one version permanently. Idempotent.

        Raises:
            ConfigError: ERASURE_LANDING_REFUSED.
        """
        try:
            retry_outages(
                lambda: self._client.delete_object(Bucket=bucket, Key=key, VersionId=version_id),
                retry_seconds=_MAX_OUTAGE_SECONDS,
            )
        except ClientError as error:
            if error_code(error) not in MISSING_CODES:
                raise _access_error(error, bucket, "delete versions of") from error

    def _keeps_versions(self, bucket: str) -> bool:
        if bucket not in self._versioned:
            try:
                answer = self._client.get_bucket_versioning(Bucket=bucket)
            except ClientError as error:
                if error_code(error) not in _UNSUPPORTED:
                    raise _access_error(error, bucket, "read the versioning of") from error
                answer = {}
            # A bucket with suspended versioning still has old versions.
            self._versioned[bucket] = bool(answer.get("Status"))
        return self._versioned[bucket]

    def _old_versions(self, bucket: str, prefix: str) -> Iterator[LandedObject]:
        pages = self._client.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=prefix)
        deleted: set[str] = set()
        for page in pages:
            deleted |= {marker["Key"] for marker in page.get("DeleteMarkers", []) if marker["IsLatest"]}
            for version in page.get("Versions", []):
                if not version["IsLatest"]:
                    yield LandedObject(
                        bucket=bucket,
                        key=version["Key"],
                        etag=str(version["ETag"]).strip('"'),
                        size=int(version["Size"]),
                        landed_at=version["LastModified"].astimezone(UTC),
                        version_id=str(version["VersionId"]),
                        is_current=False,
                        is_deleted=version["Key"] in deleted,
                    )

    def _tags(self, landed: LandedObject) -> str:
        tags = self._client.get_object_tagging(Bucket=landed.bucket, Key=landed.key)["TagSet"]
        return urlencode({tag["Key"]: tag["Value"] for tag in tags})

    def _local_path(self, key: str) -> Path | None:
        return local_path(Path(self._storage.prefix), key)

    def _put_local(self, landed: LandedObject, data: bytes) -> ObjectState | None:
        path = self._local_path(landed.key)
        state = self.object_state(landed.bucket, landed.key)
        if path is None or state is None or state.etag != landed.etag:
            return None
        # Written next to the folder, so that no listing shows it, and synced to disk before it replaces the object.
        folder = Path(self._storage.prefix)
        temporary = folder.with_name(f"{folder.name}-replacing") / _md5(landed.key.encode())
        temporary.parent.mkdir(exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        return ObjectState(etag=_md5(data), version_id=None, replacement=None)


def _version_id(answer: dict[str, Any]) -> str | None:
    """Returns the version id of a response, if the bucket is versioned."""
    version = answer.get("VersionId")
    return None if version in (None, "null") else str(version)


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _access_error(error: ClientError, bucket: str, action: str) -> Exception:
    code = error_code(error)
    if code not in (*FORBIDDEN_CODES, "AccessDenied"):
        return error
    return ConfigError("ERASURE_LANDING_REFUSED", f"An erasure may not {action} objects of {bucket}: {code}.")
