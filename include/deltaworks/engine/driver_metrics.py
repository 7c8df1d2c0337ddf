"""Resource metrics of a driver: memory of Python and the JVM, and requests to the object store.

Collected outside of batches, because a call to the JVM may wait for a garbage collection. Requests by delta-rs and
pyarrow are not counted.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltaworks.control.objects import ObjectStore, StoredObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STATM = Path("/proc/self/statm")
#: Prefixes of S3A statistics that count requests.
_S3A_PREFIXES = ("object_", "multipart_upload_", "action_http_")


class CountingObjectStore:
    """An object store that counts its requests by kind. As thread-safe as the store it wraps."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self.counts: Counter[str] = Counter()

    def get(self, key: str) -> StoredObject | None:
        self.counts["get"] += 1
        return self._objects.get(key)

    def etag(self, key: str) -> str | None:
        self.counts["get"] += 1
        return self._objects.etag(key)

    def put(self, key: str, data: bytes) -> None:
        self.counts["put"] += 1
        self._objects.put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.counts["put"] += 1
        return self._objects.put_if_absent(key, data)

    def put_if_match(self, key: str, data: bytes, etag: str) -> str | None:
        self.counts["put"] += 1
        return self._objects.put_if_match(key, data, etag)

    def list(self, prefix: str) -> list[str]:
        self.counts["list"] += 1
        return self._objects.list(prefix)

    def delete(self, key: str) -> None:
        self.counts["delete"] += 1
        self._objects.delete(key)


class DriverMetrics:
    """Reads memory and request counters of this driver. Unavailable values are None or omitted; no method raises."""

    def __init__(self, spark: SparkSession | None = None, objects: CountingObjectStore | None = None) -> None:
        self._spark = spark
        self._objects = objects
        self._previous: dict[str, int] = {}

    def memory(self) -> dict[str, int | None]:
        """Returns resident bytes of the Python driver, and used heap bytes of the JVM."""
        return {"driver_rss_bytes": _resident_bytes(), "jvm_heap_bytes": self._heap_bytes()}

    def requests(self) -> dict[str, int]:
        """Returns the requests since the last call: `control_*` for control objects, `s3a_*` for requests by Spark."""
        current = self._counters()
        delta = {name: count - self._previous.get(name, 0) for name, count in current.items()}
        self._previous = current
        return {name: count for name, count in sorted(delta.items()) if count > 0}

    def _counters(self) -> dict[str, int]:
        counts = (
            {} if self._objects is None else {f"control_{name}": n for name, n in dict(self._objects.counts).items()}
        )
        return counts | {f"s3a_{name}": count for name, count in self._s3a().items()}

    def _heap_bytes(self) -> int | None:
        try:
            runtime = self._jvm().java.lang.Runtime.getRuntime()
            return int(runtime.totalMemory() - runtime.freeMemory())
        except Exception:  # a metric must not fail the stream
            return None

    def _s3a(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        try:
            statistics = self._jvm().org.apache.hadoop.fs.FileSystem.getGlobalStorageStatistics().get("s3a")
            counters = statistics.getLongStatistics()
            while counters.hasNext():
                counter = counters.next()
                name = str(counter.getName())
                if name.startswith(_S3A_PREFIXES):
                    counts[name] = int(counter.getValue())
        except Exception:  # there are no S3A statistics for local disk
            return {}
        return counts

    def _jvm(self) -> Any:
        if self._spark is None:
            raise LookupError("no session")
        return self._spark.sparkContext._jvm


def _resident_bytes() -> int | None:
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
