"""Ends this process, and the JVM it drives, when its launcher has died.

After kill -9 of an Airflow task runner, spark-submit's JVM and its Python driver keep running and writing. They receive
no signal, no broken pipe and no end of standard input. Only their parent process changes, so a thread compares the
parents every second.
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
    """A process id and its parent's id when the watchdog started."""

    pid: int
    parent: int


def parent_of(pid: int) -> int | None:
    """Returns the pid of the parent, or None if the process has ended."""
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
    """Returns this process and its ancestors, up to `levels`, each with its current parent."""
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
    """Returns the first process of the chain whose parent has changed, or None."""
    for process in chain:
        if parent_of(process.pid) != process.parent:
            return process
    return None


def start_parent_watchdog(*, poll_seconds: float = 1.0, levels: int = 3) -> threading.Thread | None:
    """Starts a thread that kills the JVM and this process as soon as a parent changes.

    Returns None if the process has no parent to watch: it was started by init, or by pid 1 of a container, whose end
    stops all its processes anyway.
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
    """Kills the JVM, if given, and exits without clean-up, so that nothing more is written."""
    if jvm is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(jvm, signal.SIGKILL)
    os._exit(exit_code)


def launching_jvm() -> int | None:
    """Returns the pid of the JVM (spark-submit) that launched this Python driver, or None."""
    parent = os.getppid()
    return parent if _name_of(parent) == "java" else None
