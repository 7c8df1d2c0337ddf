"""An object store with the latency of a bucket within the same region."""

from __future__ import annotations

import time

from deltaworks.control.objects import ObjectStore, StoredObject

#: Duration of a small GET or PUT within a region.
REQUEST_SECONDS = 0.02


class DelayedObjects:
    """Wraps an object store, delays each request by `REQUEST_SECONDS`, and counts requests."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self.requests = 0

    def _wait(self) -> None:
        self.requests += 1
        time.sleep(REQUEST_SECONDS)

    def get(self, key: str) -> StoredObject | None:
        self._wait()
        return self._objects.get(key)

    def etag(self, key: str) -> str | None:
        self._wait()
        return self._objects.etag(key)

    def put(self, key: str, data: bytes) -> None:
        self._wait()
        self._objects.put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._wait()
        return self._objects.put_if_absent(key, data)

    def put_if_match(self, key: str, data: bytes, etag: str) -> str | None:
        self._wait()
        return self._objects.put_if_match(key, data, etag)

    def list(self, prefix: str) -> list[str]:
        self._wait()
        return self._objects.list(prefix)

    def delete(self, key: str) -> None:
        self._wait()
        self._objects.delete(key)
