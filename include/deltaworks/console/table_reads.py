"""Reads tables for pages in a child process with a deadline, to isolate its memory use and crashes.

`RenderLock` allows one page at a time to be rendered, because the interpreter runs one thread at a time. If several
pages were rendered together, other threads of the host, such as those that serve heartbeats of tasks, would wait five
milliseconds for each of them. A thread that waits for storage or a child process releases the lock meanwhile.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

#: The interpreter's switch interval, and that while a page is rendered. The first is read once: of two locks in a
#: process, one would take the interval of the other's page for the usual one, and set it for good.
_USUAL_SWITCH_SECONDS: Final = sys.getswitchinterval()
_RENDER_SWITCH_SECONDS: Final = 0.0005
_current = threading.local()


class RenderLock:
    """The render lock of a console. For threads; not reentrant."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Holds the lock within the block."""
        self._acquire()
        _current.turn = self
        try:
            yield
        finally:
            _current.turn = None
            self._release()

    def _acquire(self) -> None:
        self._lock.acquire()
        sys.setswitchinterval(min(_RENDER_SWITCH_SECONDS, _USUAL_SWITCH_SECONDS))

    def _release(self) -> None:
        sys.setswitchinterval(_USUAL_SWITCH_SECONDS)
        self._lock.release()


@contextmanager
def release_while_waiting() -> Iterator[None]:
    """Releases the lock of this thread, if it holds one, within the block."""
    render_lock: RenderLock | None = getattr(_current, "turn", None)
    if render_lock is None:
        yield
        return
    render_lock._release()
    try:
        yield
    finally:
        render_lock._acquire()


CHILD_COMMAND: Final = (sys.executable, "-m", "deltaworks.page_reads.reader")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """Limits of one kind of reads, of which one runs at a time.

    Args:
        seconds: how long a page waits for the child process, which is then killed.
        wait_seconds: how long a page waits for the read before its own.
    """

    seconds: float
    wait_seconds: float
    max_output_bytes: int
    lock: threading.Lock = field(default_factory=threading.Lock, compare=False)


#: A child needs two seconds of CPU; on a busy machine that takes several times as long, however often a page is opened
#: again. The page process itself gives up after 20 s.
TABLE_LIMITS: Final = ReadLimits(seconds=15.0, wait_seconds=1.0, max_output_bytes=1 << 20)
#: The queries of a dashboard end after 60 s by themselves; the rest is for the start of the child and the drawing.
DASHBOARD_LIMITS: Final = ReadLimits(seconds=75.0, wait_seconds=30.0, max_output_bytes=32 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReadResult:
    """The rows of a query, or the document of a dashboard.

    The query exceeded the deadline if `unfinished` is set, and failed if `problem` is.
    """

    rows: tuple[Mapping[str, Any], ...] = ()
    document: str = ""
    unfinished: bool = False
    problem: str = ""


def read_tables(
    read: str, *, command: Sequence[str] = CHILD_COMMAND, limits: ReadLimits = TABLE_LIMITS, **values: str
) -> TableReadResult:
    """Runs a query in the child process, which has ended when this returns. Never raises.

    Args:
        read, values: the query of `deltaworks.page_reads.reader`.
    """
    with release_while_waiting():
        return _run_child(json.dumps({"read": read, **values}), command, limits)


def _run_child(question: str, command: Sequence[str], limits: ReadLimits) -> TableReadResult:
    if not limits.lock.acquire(timeout=limits.wait_seconds):
        return TableReadResult(unfinished=True)
    try:
        completed = subprocess.run(
            [*command, question],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limits.seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return TableReadResult(unfinished=True)
    except (OSError, ValueError) as error:
        return TableReadResult(problem=f"The process for table reads could not be started: {error}.")
    finally:
        limits.lock.release()
    return _parse_output(completed, limits.max_output_bytes)


def _parse_output(completed: subprocess.CompletedProcess[bytes], max_bytes: int) -> TableReadResult:
    try:
        output = json.loads(completed.stdout.splitlines()[-1][:max_bytes])
        if "error" in output:
            return TableReadResult(problem=str(output["error"]))
        if "document" in output:
            return TableReadResult(document=str(output["document"]))
        return TableReadResult(rows=tuple(row for row in output["rows"] if isinstance(row, dict)))
    except (ValueError, IndexError, KeyError, TypeError):
        return TableReadResult(
            problem=(f"The process for table reads ended with exit code {completed.returncode} and no answer.")
        )
