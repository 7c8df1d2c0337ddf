"""The driver process that hosts a run, its own or one shared with other pipelines, and its resource metrics.

A run with its own driver ends the process when it must stop writing. A run in a shared driver ends only itself; commits
that are still in progress are fenced by the owner epoch in the tables.

Metrics (memory of Python and the JVM, requests to the object store) are collected outside of batches, because a call to
the JVM may wait for a garbage collection. Requests by delta-rs and pyarrow are not counted.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from deltaworks.control.health.heartbeat import HeartbeatWriter
from deltaworks.control.objects import ObjectStore, StoredObject
from deltaworks.control.parent_watchdog import exit_immediately, launching_jvm
from deltaworks.errors import DeltaworksError, TransientError
from deltaworks.specs.pipeline import PipelineSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
#: Delay before a run ends that was started although its stop flag is set.
STOP_FLAG_DELAY_SECONDS = 20.0
#: Maximum wait for a running batch at the end of a run in a shared driver. Interrupting its Python code can corrupt the
#: stack of the query's thread.
BATCH_END_SECONDS = 60.0


class DriverHost(Protocol):
    """What a run needs from its driver process. With `has_run_limit` the run ends after `max_run_seconds`."""

    has_run_limit: bool
    stop_flag_delay_seconds: float

    def pool(self, name: str) -> str:
        """Returns the name of the Spark scheduler pool for a query."""

    def on_lease_lost(self, error: DeltaworksError) -> None:
        """Handles the loss of the lease: no new work may start. Called from another thread than the run's."""

    def stop_reason(self) -> str | None:
        """Returns why the run must end now, or None.

        Raises:
            FencedError: LEASE_LOST; TransientError: LEASE_EXPIRED.
        """

    def on_stall(self, error: TransientError) -> None:
        """Handles a stalled batch, after the heartbeat has reported it."""

    def await_batch(self, is_batch_running: Callable[[], bool]) -> None:
        """Waits for the running batch before the run's queries are stopped; no new batch starts."""

    def on_queries_stopped(self, is_batch_running: Callable[[], bool]) -> None:
        """Handles batches that still run after the run's queries were stopped."""


class OwnDriver:
    """A driver process with a single stream. It ends together with the run, by force if necessary."""

    has_run_limit = True
    stop_flag_delay_seconds = STOP_FLAG_DELAY_SECONDS

    def pool(self, name: str) -> str:
        return name

    def on_lease_lost(self, error: DeltaworksError) -> None:
        # Nothing may be started under a lost lease. The owner epoch in the tables fences work in progress.
        exit_driver(error)

    def stop_reason(self) -> str | None:
        return None

    def on_stall(self, error: TransientError) -> None:
        exit_driver(error)

    def await_batch(self, is_batch_running: Callable[[], bool]) -> None:
        return

    def on_queries_stopped(self, is_batch_running: Callable[[], bool]) -> None:
        return


class SharedDriver:
    """A driver process with all streams of a group. Each run of a pipeline has its own instance. Thread-safe.

    Args:
        exit_driver: ends the process. Called only if a stalled batch cannot be ended on its own.
    """

    has_run_limit = False
    stop_flag_delay_seconds = 0.0

    def __init__(self, pipeline: str, *, exit_driver: Callable[[TransientError], None]) -> None:
        self._pipeline = pipeline
        self._exit_driver = exit_driver
        self._reason: str | None = None
        self._lease_error: DeltaworksError | None = None

    def request_end(self, reason: str) -> None:
        """Requests the end of the run after its current batch. Idempotent; the first reason is kept."""
        self._reason = self._reason or reason

    def pool(self, name: str) -> str:
        return f"{self._pipeline}.{name}"

    def on_lease_lost(self, error: DeltaworksError) -> None:
        self._lease_error = error

    def stop_reason(self) -> str | None:
        if self._lease_error is not None:
            raise self._lease_error
        return self._reason

    def on_stall(self, error: TransientError) -> None:
        raise error

    def await_batch(self, is_batch_running: Callable[[], bool]) -> None:
        if self._lease_error is None:
            _wait_while(is_batch_running, BATCH_END_SECONDS)

    def on_queries_stopped(self, is_batch_running: Callable[[], bool]) -> None:
        # Spark cancels its jobs, but blocked Python code ends only with the process.
        if _wait_while(is_batch_running, BATCH_END_SECONDS):
            self._exit_driver(
                TransientError(
                    "BATCH_STALLED",
                    f"A batch of {self._pipeline!r} has stalled and cannot be interrupted, so its group's driver "
                    "exits.",
                )
            )


def exit_driver(error: DeltaworksError) -> None:
    """Ends this process and its JVM immediately, and reports the error to the launcher."""
    log.error("%s", error)
    print(error.as_line(), flush=True)  # noqa: T201 - the line a launcher reads
    exit_immediately(launching_jvm(), exit_code=error.exit_code)


def run_limit_reason(
    host: DriverHost, spec: PipelineSpec, now: float, *, started: float, first_batch: float | None
) -> str | None:
    """Returns the reason for ending if the run's time limit is reached; None otherwise, or if the host has no limit.

    The time counts from the first batch, so that a slow start does not end a run without progress.
    """
    if not host.has_run_limit:
        return None
    limit_seconds = spec.stream.max_run_seconds
    if now - (first_batch or now) >= limit_seconds:
        return "max_run_seconds"
    return "max_run_seconds without a batch" if now - started >= 2 * limit_seconds else None


def fail_stalled_batch(
    pipeline: str,
    batch_started: float | None,
    now: float,
    *,
    stall_seconds: float,
    heartbeat: HeartbeatWriter,
    host: DriverHost,
) -> None:
    """Reports BATCH_STALLED in the heartbeat and to the host if the current batch has run for `stall_seconds`.

    Args:
        batch_started: start of the batch on the monotonic clock of `now`; None if no batch runs.
    """
    if batch_started is None or now - batch_started < stall_seconds:
        return
    message = f"A batch of {pipeline!r} has run for {now - batch_started:.0f} seconds."
    error = TransientError("BATCH_STALLED", message)
    heartbeat.close(state="failed", error=error.as_record())
    host.on_stall(error)


def _wait_while(condition: Callable[[], bool], seconds: float) -> bool:
    """Waits while `condition` holds. Returns whether it still holds after `seconds`."""
    deadline = time.monotonic() + seconds
    while condition():
        if time.monotonic() >= deadline:
            return True
        time.sleep(0.1)
    return False


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
