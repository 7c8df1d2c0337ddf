"""The guard: ends this process, and the JVM it drives, when whoever launched it has died.

kill -9 of an Airflow task runner leaves spark-submit's JVM and its Python driver orphaned and writing. Neither
standard input, nor a broken pipe, nor a signal tells them. What does change is the parent of the JVM (and of a
process without JVM its own parent), and the parent of that one: so they are compared every second.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

ORPHANED_EXIT_CODE = 41


@dataclass(frozen=True, slots=True)
class ProcessParent:
    """A process and the parent it had when the guard began."""

    pid: int
    parent: int


def parent_of(pid: int) -> int | None:
    """The parent's pid, or None when the process is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1])


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def process_ancestry(*, levels: int = 3) -> tuple[ProcessParent, ...]:
    """This process, its parent and its parent's parent, up to `levels`, each with its parent now."""
    chain: list[ProcessParent] = []
    pid = os.getpid()
    while len(chain) < levels:
        parent = parent_of(pid)
        if parent is None or parent <= 1:
            break
        chain.append(ProcessParent(pid, parent))
        pid = parent
    return tuple(chain)


def find_orphan(chain: tuple[ProcessParent, ...]) -> ProcessParent | None:
    """The first process of the chain whose parent has changed."""
    for watched in chain:
        if parent_of(watched.pid) != watched.parent:
            return watched
    return None


def start_parent_watchdog(*, poll_seconds: float = 1.0, levels: int = 3) -> threading.Thread | None:
    """Watch the chain of parents from a thread; on a change kill the JVM and end this process at once.

    Returns None where the process has no parent to watch (started by init). A container's pid 1 as launcher
    is such a case: there the container's end takes everything with it.
    """
    chain = process_ancestry(levels=levels)
    if not chain:
        return None
    jvm = chain[0].parent if _name_of(chain[0].parent) == "java" else None

    def loop() -> None:
        event = threading.Event()
        while not event.wait(poll_seconds):
            if find_orphan(chain) is not None:
                exit_immediately(jvm)

    thread = threading.Thread(target=loop, name="orphan-guard", daemon=True)
    thread.start()
    return thread


def exit_immediately(jvm: int | None = None, *, exit_code: int = ORPHANED_EXIT_CODE) -> None:
    """Kill the JVM, if given, and leave without any clean-up: nothing more may be written."""
    if jvm is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(jvm, signal.SIGKILL)
    os._exit(exit_code)


def launching_jvm() -> int | None:
    """The JVM that launched this Python driver (spark-submit), if that is how it runs."""
    parent = os.getppid()
    return parent if _name_of(parent) == "java" else None
