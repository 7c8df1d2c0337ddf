"""Waits for processes as long as they make progress, regardless of the machine's speed.

A fixed timeout that fits one machine is too short on a slower one. Here a wait fails only if nothing changes and its
processes use no CPU time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

import psutil

from sandbox.stack.home import StackHome

#: Idle processes use some CPU time too; less than this during a wait's maximum idle time counts as none.
_BUSY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Stall:
    """A stalled wait: seconds without progress, and the last progress marker (`moved`)."""

    seconds: float
    last_marker: Hashable


def wait_while_progressing(
    done: Callable[[], bool],
    progress_marker: Callable[[], Hashable],
    *,
    stall_seconds: float,
    poll_seconds: float = 0.5,
    marker_seconds: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Stall | None:
    """Waits until `done` returns True. Returns the stall if the marker stays unchanged for `stall_seconds`.

    Args:
        progress_marker: returns a value that changes with progress: counts, states, CPU time (`busy_steps`).
        marker_seconds: interval between calls of `progress_marker`, for one that is expensive.
    """
    last, since, checked_at = progress_marker(), clock(), clock()
    while not done():
        if clock() - checked_at >= marker_seconds:
            now, checked_at = progress_marker(), clock()
            if now != last:
                last, since = now, clock()
            elif clock() - since > stall_seconds:
                return Stall(clock() - since, last)
        sleep(poll_seconds)
    return None


def busy_steps(pids: Iterable[int]) -> int:
    """Returns the CPU time of processes and their descendants, in steps of five seconds."""
    return int(cpu_seconds(pids) / _BUSY_SECONDS)


def stack_cpu_seconds(home: StackHome) -> float:
    """Returns the CPU seconds of all processes under the stack's supervisor; 0 without a supervisor."""
    try:
        return cpu_seconds([int((home.root / "supervisord.pid").read_text())])
    except (OSError, ValueError):
        return 0.0


def cpu_seconds(pids: Iterable[int]) -> float:
    """Returns the CPU seconds of processes and their descendants. Ended ones count once their parent has waited for
    them.
    """
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            for member in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    times = member.cpu_times()
                    total += times.user + times.system + times.children_user + times.children_system
    return total
