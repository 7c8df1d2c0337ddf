"""Reads tables for pages in a child process with a deadline, one at a time, to isolate its memory use and crashes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from deltaworks.console.render_lock import release_while_waiting

#: How long a page waits for the child process.
DEADLINE_SECONDS: Final = 5.0
_LOCK_TIMEOUT_SECONDS: Final = 1.0
CHILD_COMMAND: Final = (sys.executable, "-m", "deltaworks.operations.table_reads")
_MAX_OUTPUT_BYTES = 1 << 20
_child_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReadResult:
    """The rows of a query. The query exceeded the deadline if `unfinished` is set, and failed if `problem` is."""

    rows: tuple[Mapping[str, Any], ...] = ()
    unfinished: bool = False
    problem: str = ""


def read_tables(
    read: str, *, command: Sequence[str] = CHILD_COMMAND, seconds: float = DEADLINE_SECONDS, **values: str
) -> TableReadResult:
    """Runs a query in the child process, which has ended when this returns. Never raises.

    Args:
        read, values: the query of `deltaworks.operations.table_reads`.
    """
    with release_while_waiting():
        return _run_child(json.dumps({"read": read, **values}), command, seconds)


def _run_child(question: str, command: Sequence[str], seconds: float) -> TableReadResult:
    if not _child_lock.acquire(timeout=_LOCK_TIMEOUT_SECONDS):
        return TableReadResult(unfinished=True)
    try:
        completed = subprocess.run(
            [*command, question],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return TableReadResult(unfinished=True)
    except (OSError, ValueError) as error:
        return TableReadResult(problem=f"The process for table reads could not be started: {error}.")
    finally:
        _child_lock.release()
    return _parse_output(completed)


def _parse_output(completed: subprocess.CompletedProcess[bytes]) -> TableReadResult:
    try:
        output = json.loads(completed.stdout.splitlines()[-1][:_MAX_OUTPUT_BYTES])
        if "error" in output:
            return TableReadResult(problem=str(output["error"]))
        return TableReadResult(rows=tuple(row for row in output["rows"] if isinstance(row, dict)))
    except (ValueError, IndexError, KeyError, TypeError):
        return TableReadResult(
            problem=(f"The process for table reads ended with exit code {completed.returncode} and no answer.")
        )
