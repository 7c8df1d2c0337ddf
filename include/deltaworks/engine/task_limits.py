"""Limits memory and time per payload of a task, enforced by the kernel and a watchdog thread.

Python code that is stuck in a native library cannot stop itself. The kernel limits memory, and a watchdog thread that
works without Python's interpreter lock limits time. Exceeding a limit is either an error attributed to an event, or a
crash of the Python worker; the reader of the batch handles both.
"""

from __future__ import annotations

import faulthandler
import resource
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deltaworks.events.chunks import Payload

#: Minimum interval of resetting the watchdog, because a stream has millions of records.
_REARM_SECONDS = 0.5
_cached_baseline_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLimits:
    """Limits of one task. `memory_bytes` is in addition to the worker's memory before its first task."""

    payload_seconds: float
    memory_bytes: int

    @contextmanager
    def apply_to_task(self, payloads: Iterable[Payload]) -> Iterator[Iterable[Payload]]:
        """Applies the limits to a Spark task; iterate over the yielded payloads in the block. No effect in the
        driver."""
        from pyspark import TaskContext

        if TaskContext.get() is None:
            yield payloads
            return
        with self.enforced():
            yield self.with_timeout(payloads)

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Applies the limits to this process while the block runs, for one task at a time. Memory is limited on Linux
        only.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        idle = _baseline_data_bytes()
        if idle is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (_min_limit(idle + self.memory_bytes, soft, hard), hard))
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    def with_timeout(self, payloads: Iterable[Payload]) -> Iterator[Payload]:
        """Yields the payloads and kills the process, with a traceback in its log, if one takes too long.

        The time after the last payload is limited too. Use it within `enforced`.
        """
        armed = 0.0
        remaining = iter(payloads)
        while True:
            now = time.monotonic()
            if now - armed >= _REARM_SECONDS:
                faulthandler.dump_traceback_later(self.payload_seconds, exit=True)
                armed = now
            try:
                payload = next(remaining)
            except StopIteration:
                faulthandler.dump_traceback_later(self.payload_seconds, exit=True)
                return
            yield payload


def _min_limit(limit_bytes: int, *limits: int) -> int:
    return min([limit_bytes, *(limit for limit in limits if limit != resource.RLIM_INFINITY)])


def _baseline_data_bytes() -> int | None:
    """Returns the memory of a worker before its first task. Cached, because workers are reused by later batches."""
    global _cached_baseline_bytes  # noqa: PLW0603 - of this process
    if _cached_baseline_bytes is None:
        status = Path("/proc/self/status")
        if not status.exists():
            return None
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmData:"))
        _cached_baseline_bytes = int(line.split()[1]) << 10
    return _cached_baseline_bytes
