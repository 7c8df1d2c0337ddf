"""Measures wall-clock and CPU seconds of the phases of a run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sandbox.stack.home import StackHome
from sandbox.stack.waiting import cpu_seconds, stack_cpu_seconds


@dataclass(frozen=True, slots=True)
class Phase:
    """Duration of one phase. `cpu_seconds` is the sum over all processes of the stack and the caller.

    A phase that stops the stack lacks most of its CPU time, because it cannot be read from ended processes.
    """

    name: str
    seconds: float
    cpu_seconds: float


class Phases:
    """The phases of one run, in order."""

    def __init__(self, home: StackHome) -> None:
        self._home = home
        self.all: list[Phase] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measures the block as a phase, also if it raises."""
        started, cpu = time.monotonic(), self._cpu_seconds()
        try:
            yield
        finally:
            self.all.append(Phase(name, time.monotonic() - started, max(0.0, self._cpu_seconds() - cpu)))

    @property
    def seconds(self) -> float:
        """Total seconds of all phases."""
        return sum(phase.seconds for phase in self.all)

    def _cpu_seconds(self) -> float:
        return cpu_seconds([os.getpid()]) + stack_cpu_seconds(self._home)
