"""An object store that is as far away as a bucket: each request waits for the network."""

from __future__ import annotations

import time

from deltaworks.control.objects import ObjectStore, StoredObject

#: A small GET or PUT within a region.
REQUEST_SECONDS = 0.02


class DelayedObjects:
    """Another store's objects, each request `REQUEST_SECONDS` later. Counts requests."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self.requests = 0

    def _wait(self) -> None:
        self.requests += 1
        time.sleep(REQUEST_SECONDS)

    def get(self, key: str) -> StoredObject | None:
        self._wait()
        return self._objects.get(key)

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
