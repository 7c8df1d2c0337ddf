"""Measures the peak memory of the stack: the sum over its processes, sampled by a thread."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType

import psutil

from sandbox.stack.home import StackHome
from sandbox.stack.processes import stack_processes


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Memory of all processes at one time. `measure` is `pss` (shared pages are divided among processes) or `rss`."""

    total_bytes: int
    by_kind: Mapping[str, int]
    process_count: int
    at: datetime
    measure: str


def sample_memory(home: StackHome, *, include_caller: bool = True) -> MemorySample:
    """Measures the memory of the stack's processes and of the caller. Takes 10 to 50 ms."""
    by_kind: Counter[str] = Counter()
    measures = set()
    count = 0
    processes = [(process.pid, process.kind) for process in stack_processes(home)]
    if include_caller:
        processes.append((psutil.Process().pid, "caller"))
    for pid, kind in processes:
        try:
            size, measure = _memory(psutil.Process(pid))
        except psutil.Error:
            continue
        by_kind[kind] += size
        measures.add(measure)
        count += 1
    measure = "pss" if measures == {"pss"} else "rss"
    return MemorySample(sum(by_kind.values()), dict(by_kind), count, datetime.now(UTC), measure)


def _memory(process: psutil.Process) -> tuple[int, str]:
    # Proportional set size, because Airflow's workers are forks that share most pages, which RSS counts for each.
    try:
        return int(process.memory_full_info().pss), "pss"
    except (AttributeError, psutil.AccessDenied):
        return int(process.memory_info().rss), "rss"


class PeakMemory:
    """Samples memory in a thread during the block. `peak` is the largest sample, `samples` are all."""

    def __init__(self, home: StackHome, *, interval_seconds: float = 2.0) -> None:
        self._home = home
        self._interval_seconds = interval_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)
        self.samples: list[MemorySample] = []

    @property
    def peak(self) -> MemorySample:
        """Largest sample so far."""
        return max(self.samples or [self._measure()], key=lambda sample: sample.total_bytes)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self._measure()
            if self._ended.wait(self._interval_seconds):
                return

    def _measure(self) -> MemorySample:
        sample = sample_memory(self._home)
        self.samples.append(sample)
        return sample
