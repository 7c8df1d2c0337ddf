"""How long the phases of a run take, and how much CPU time they cost: what they would take where nothing else runs."""

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
    """One phase. `cpu_seconds` are those of all processes of the stack and of the caller.

    A phase that ends the stack misses most of its own, since they can no longer be read.
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
        """Measure the block, also one that fails."""
        started, cpu = time.monotonic(), self._cpu_seconds()
        try:
            yield
        finally:
            self.all.append(Phase(name, time.monotonic() - started, max(0.0, self._cpu_seconds() - cpu)))

    @property
    def seconds(self) -> float:
        """All of them."""
        return sum(phase.seconds for phase in self.all)

    def _cpu_seconds(self) -> float:
        return cpu_seconds([os.getpid()]) + stack_cpu_seconds(self._home)
