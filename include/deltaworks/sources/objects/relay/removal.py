"""Deletes landed objects, or moves them to an archive, provided that they were not overwritten since they were
announced.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from botocore.exceptions import ClientError

from deltaworks.errors import ConfigError
from deltaworks.sources.objects.object_names import local_path
from deltaworks.sources.objects.payloads import matches_etag
from deltaworks.sources.objects.relay.bucket import CHANGED_CODES, FORBIDDEN_CODES, MISSING_CODES, bucket_client
from deltaworks.sources.outages import error_code
from deltaworks.specs.storage import StorageSpec

#: `changed`: the key now has another object, which is not removed because it has its own file event.
RemovalOutcome = Literal["removed", "missing", "changed"]
#: A concurrent write of the key.
_CONFLICT_CODE = "ConditionalRequestConflict"
#: S3's limit for a single copy request.
_MAX_COPY_BYTES = 5 << 30


class ObjectRemover:
    """Removes objects from a landing storage, optionally to an archive. Thread-safe.

    If the process is killed between copy and delete, the next run copies the object again to the same key.
    """

    def __init__(self, landing: StorageSpec, *, archive: StorageSpec | None = None, versioned: bool = False) -> None:
        self._landing = landing
        self._archive = archive
        self._versioned = versioned
        self._client: Any = bucket_client(landing) if landing.scheme == "s3" else None

    def check(self, bucket: str, key: str, etag: str, version_id: str | None) -> RemovalOutcome:
        """Returns the outcome that `remove` would have. Changes nothing."""
        if self._client is None:
            return _local_state(local_path(Path(self._landing.prefix), key), etag)
        return self._outcome_of(
            bucket, lambda: self._client.head_object(**self._request_for(bucket, key, etag, version_id))
        )

    def remove(self, bucket: str, key: str, etag: str, version_id: str | None) -> RemovalOutcome:
        """Deletes the object, or moves it to the archive; in a versioned bucket, the version that was read.

        The storage checks the ETag when it deletes. If it does not support that condition, the ETag was checked
        immediately before.

        Raises:
            ConfigError: OBJECT_NOT_REMOVABLE.
        """
        if self._client is None:
            return self._remove_local(key, etag)
        state = self.check(bucket, key, etag, version_id)
        if state != "removed":
            return state
        archive = self._archive
        if archive is not None:
            state = self._outcome_of(bucket, lambda: self._copy(archive, bucket, key, etag, version_id))
        if state != "removed":
            return state
        request = self._request_for(bucket, key, etag, version_id)
        return self._outcome_of(bucket, lambda: self._delete(request))

    def _delete(self, request: dict[str, Any]) -> None:
        try:
            self._client.delete_object(**request)
        except ClientError as error:
            if "IfMatch" not in request or error_code(error) != "NotImplemented":
                raise
            # Some stores ignore an unknown condition; s3proxy rejects the request.
            self._client.delete_object(Bucket=request["Bucket"], Key=request["Key"])

    def _request_for(self, bucket: str, key: str, etag: str, version_id: str | None) -> dict[str, Any]:
        if self._versioned and version_id is not None:
            return {"Bucket": bucket, "Key": key, "VersionId": version_id}
        return {"Bucket": bucket, "Key": key, **({"IfMatch": f'"{etag}"'} if etag else {})}

    def _copy(self, archive: StorageSpec, bucket: str, key: str, etag: str, version_id: str | None) -> None:
        source = {"Bucket": bucket, "Key": key}
        if self._versioned and version_id is not None:
            source["VersionId"] = version_id
        target = {"Bucket": archive.bucket, "Key": "/".join(filter(None, [archive.prefix, bucket, key]))}
        size = self._client.head_object(**source)["ContentLength"]
        if size > _MAX_COPY_BYTES:
            self._client.copy(source, target["Bucket"], target["Key"])
        else:
            condition = {"CopySourceIfMatch": f'"{etag}"'} if etag and "VersionId" not in source else {}
            self._client.copy_object(CopySource=source, **target, **condition)

    def _outcome_of(self, bucket: str, call: Any) -> RemovalOutcome:
        try:
            call()
        except ClientError as error:
            code = error_code(error)
            if code in MISSING_CODES:
                return "missing"
            if code in CHANGED_CODES or code == _CONFLICT_CODE:
                return "changed"
            if code in FORBIDDEN_CODES:
                raise ConfigError(
                    "OBJECT_NOT_REMOVABLE", f"Objects of {bucket} may not be removed or archived: {code}."
                ) from error
            raise
        return "removed"

    def _remove_local(self, key: str, etag: str) -> RemovalOutcome:
        path = local_path(Path(self._landing.prefix), key)
        state = _local_state(path, etag)
        if path is None or state != "removed":
            return state
        if self._archive is None:
            path.unlink(missing_ok=True)
        else:
            target = Path(self._archive.prefix) / key
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)
        return "removed"


def _local_state(path: Path | None, etag: str) -> RemovalOutcome:
    if path is None:  # the key is outside this folder
        return "missing"
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return "missing"
    return "removed" if matches_etag(data, etag) else "changed"
