"""What pages read from tables: by one child process at a time, with a deadline, so that its memory and its fate are
not those of the process that hosts the console.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from deltaworks.console.render_lock import release_while_waiting

#: How long a page waits for the child, and for one that another page has started.
DEADLINE_SECONDS: Final = 5.0
_LOCK_TIMEOUT_SECONDS: Final = 1.0
CHILD_COMMAND: Final = (sys.executable, "-m", "deltaworks.operations.table_reads")
_MAX_OUTPUT_BYTES = 1 << 20
_child_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReadResult:
    """What was read. `unfinished` where it takes longer than a page waits, `problem` where it cannot be read."""

    rows: tuple[Mapping[str, Any], ...] = ()
    unfinished: bool = False
    problem: str = ""


def read_tables(
    read: str, *, command: Sequence[str] = CHILD_COMMAND, seconds: float = DEADLINE_SECONDS, **values: str
) -> TableReadResult:
    """Have the child read something. Never raises; the child is gone when this returns.

    Args:
        read, values: as `deltaworks.operations.table_reads` has them.
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
        return TableReadResult(problem=f"The process that reads tables could not be started: {error}.")
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
        return TableReadResult(problem=f"The process that reads tables ended with {completed.returncode} and no answer.")
