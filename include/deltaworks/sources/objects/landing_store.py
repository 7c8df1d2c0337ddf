"""Creates objects if they do not exist: in a bucket by conditional requests, or in a folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol

from botocore.exceptions import BotoCoreError, ClientError

from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ConfigError, TransientError
from deltaworks.sources.objects.relay.bucket import FORBIDDEN_CODES, bucket_client
from deltaworks.sources.outages import error_code, retry_outages
from deltaworks.specs.storage import StorageSpec

_EXISTS_CODES = ("PreconditionFailed", "412")
_CONFLICT_CODES = ("ConditionalRequestConflict", "409")
_UNSUPPORTED_CODES = ("NotImplemented", "501")
_ATTEMPTS, _PAUSE_SECONDS = 8, 0.2
#: A store that has accepted an object before is retried longer than one that never answered.
_FIRST_RETRY_SECONDS, _RETRY_SECONDS = 1.0, 60.0


class LandingStore(Protocol):
    """A bucket or folder in which objects are landed. Not thread-safe."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Creates the object; returns False if the key exists.

        Raises:
            ConfigError: LANDING_REFUSED.
            TransientError: STORAGE_UNREACHABLE.
        """


def landing_store(storage: StorageSpec) -> LandingStore:
    """Returns the store of a bucket; `storage` has it as its root."""
    return _BucketStore(storage) if storage.scheme == "s3" else _FolderStore(storage)


class _BucketStore:
    def __init__(self, storage: StorageSpec) -> None:
        self._client: Any = bucket_client(storage, attempts=2)
        self._bucket = storage.bucket
        self._condition = {"IfNoneMatch": "*"}
        self._retry_seconds = _FIRST_RETRY_SECONDS

    def put_if_absent(self, key: str, data: bytes) -> bool:
        for attempt in range(_ATTEMPTS):
            try:
                retry_outages(lambda: self._put(key, data), retry_seconds=self._retry_seconds)
            except ClientError as error:
                code = error_code(error)
                if code in _EXISTS_CODES:
                    return False
                if code in _UNSUPPORTED_CODES and self._condition:
                    # The key contains a content digest, so an unconditional put replaces the object by an equal one.
                    self._condition = {}
                elif code in _CONFLICT_CODES:
                    time.sleep(_PAUSE_SECONDS * (attempt + 1))
                else:
                    raise self._put_error(code, error) from error
            except BotoCoreError as error:
                raise self._put_error("", error) from error
            else:
                self._retry_seconds = _RETRY_SECONDS
                return True
        raise self._put_error("", OSError(f"{_ATTEMPTS} attempts conflicted with other writes of {key}"))

    def _put(self, key: str, data: bytes) -> None:
        self._client.put_object(Bucket=self._bucket, Key=key, Body=data, **self._condition)

    def _put_error(self, code: str, error: Exception) -> ConfigError | TransientError:
        if code in FORBIDDEN_CODES:
            return ConfigError("LANDING_REFUSED", f"The bucket {self._bucket} refuses new objects: {code}.")
        return TransientError(
            "STORAGE_UNREACHABLE",
            f"The landing bucket {self._bucket} could not store an object: {error}.",
            hint=(
                "On one machine start the stack with `deltaworks up`. Then land the same files again; existing "
                "objects are skipped."
            ),
        )


class _FolderStore:
    def __init__(self, storage: StorageSpec) -> None:
        self._root = Path(storage.prefix)
        self._objects = LocalObjects(self._root)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if (self._root / key).exists():
            return False
        return self._objects.put_if_absent(key, data)
