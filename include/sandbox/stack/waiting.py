"""Waiting for what processes do: for as long as something moves, however slow the machine is.

A time-out that is right on one machine fails on a slower one. What hangs is told by something else: nothing of it moves
any more, and its processes take no CPU time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

import psutil

from sandbox.stack.home import StackHome

#: A process that waits takes some CPU time too; less than this within the patience of a wait counts as none.
_BUSY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Stall:
    """Nothing has moved for `seconds`, `moved` being what was seen last."""

    seconds: float
    moved: Hashable


def wait_while_progressing(
    done: Callable[[], bool],
    progress_marker: Callable[[], Hashable],
    *,
    patience_seconds: float,
    poll_seconds: float = 0.5,
    marker_seconds: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Stall | None:
    """Wait until `done`; None, or how it stalled when `movement` has not changed for `patience_seconds`.

    Args:
        movement: what changes while somebody works on it: counts, states, CPU seconds in steps (`busy_steps`).
        look_seconds: how often to look at that, where looking takes work itself.
    """
    last, since, looked = progress_marker(), clock(), clock()
    while not done():
        if clock() - looked >= marker_seconds:
            now, looked = progress_marker(), clock()
            if now != last:
                last, since = now, clock()
            elif clock() - since > patience_seconds:
                return Stall(clock() - since, last)
        sleep(poll_seconds)
    return None


def busy_steps(pids: Iterable[int]) -> int:
    """How much the processes and all they started have worked, in steps of five CPU seconds."""
    return int(cpu_seconds(pids) / _BUSY_SECONDS)


def stack_cpu_seconds(home: StackHome) -> float:
    """The CPU seconds of everything under the stack's supervisor so far; 0 while there is none."""
    try:
        return cpu_seconds([int((home.root / "supervisord.pid").read_text())])
    except (OSError, ValueError):
        return 0.0


def cpu_seconds(pids: Iterable[int]) -> float:
    """The CPU seconds of processes and all they started, what has ended included once its parent has seen that."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            for member in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    times = member.cpu_times()
                    total += times.user + times.system + times.children_user + times.children_system
    return total
