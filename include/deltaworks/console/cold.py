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

from deltaworks.console.turn import waiting

#: How long a page waits for the child, and for one that another page has started.
DEADLINE_SECONDS: Final = 5.0
_TURN_SECONDS: Final = 1.0
CHILD: Final = (sys.executable, "-m", "deltaworks.operations.table_reads")
_MOST_BYTES = 1 << 20
_turn = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdAnswer:
    """What was read. `unfinished` where it takes longer than a page waits, `problem` where it cannot be read."""

    rows: tuple[Mapping[str, Any], ...] = ()
    unfinished: bool = False
    problem: str = ""


def read_cold(
    read: str, *, command: Sequence[str] = CHILD, seconds: float = DEADLINE_SECONDS, **values: str
) -> ColdAnswer:
    """Have the child read something. Never raises; the child is gone when this returns.

    Args:
        read, values: as `deltaworks.operations.table_reads` has them.
    """
    with waiting():
        return _read(json.dumps({"read": read, **values}), command, seconds)


def _read(question: str, command: Sequence[str], seconds: float) -> ColdAnswer:
    if not _turn.acquire(timeout=_TURN_SECONDS):
        return ColdAnswer(unfinished=True)
    try:
        done = subprocess.run(
            [*command, question],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ColdAnswer(unfinished=True)
    except (OSError, ValueError) as error:
        return ColdAnswer(problem=f"The process that reads tables could not be started: {error}.")
    finally:
        _turn.release()
    return _answer(done)


def _answer(done: subprocess.CompletedProcess[bytes]) -> ColdAnswer:
    try:
        said = json.loads(done.stdout.splitlines()[-1][:_MOST_BYTES])
        if "error" in said:
            return ColdAnswer(problem=str(said["error"]))
        return ColdAnswer(rows=tuple(row for row in said["rows"] if isinstance(row, dict)))
    except (ValueError, IndexError, KeyError, TypeError):
        return ColdAnswer(problem=f"The process that reads tables ended with {done.returncode} and no answer.")
