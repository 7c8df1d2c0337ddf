"""What a task may take: memory, and the time for which it has one payload open. Both are held by the system.

Python code that hangs or grows inside a library cannot end itself. So memory is bounded by the kernel, which refuses
more, and time by a thread that needs nothing of Python to end the process. Either becomes an error that names an event,
or the death of the Python worker; what reads a batch deals with both.
"""

from __future__ import annotations

import faulthandler
import resource
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deltaworks.events.parse import Payload

#: Records of a stream come by the million: their time is begun anew no more often than this.
_REARM_SECONDS = 0.5
_cached_baseline_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLimits:
    """What one task may take. `memory_bytes` is on top of what its Python worker held before its first task."""

    payload_seconds: float
    memory_bytes: int

    @contextmanager
    def apply_to_task(self, payloads: Iterable[Payload]) -> Iterator[Iterable[Payload]]:
        """Hold a task of Spark to the limits meanwhile; the payloads to work on. The driver is held to none."""
        from pyspark import TaskContext

        if TaskContext.get() is None:
            yield payloads
            return
        with self.enforced():
            yield self.with_timeout(payloads)

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Hold this process to the limits meanwhile, one task at a time. Memory is bounded on Linux alone."""
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
        """The payloads. One that is opened and worked on for too long ends this process, with a traceback in its log.

        What is done after the last one has the same time again. Use it inside `held`.
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
    """What counts against the limit in a worker that has done nothing yet; a worker is used again for later batches."""
    global _cached_baseline_bytes  # noqa: PLW0603 - of this process
    if _cached_baseline_bytes is None:
        status = Path("/proc/self/status")
        if not status.exists():
            return None
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmData:"))
        _cached_baseline_bytes = int(line.split()[1]) << 10
    return _cached_baseline_bytes
