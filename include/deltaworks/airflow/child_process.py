"""Starts a task's child process, ends it with the task, and parses Spark UI, results and error from its output."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from deltaworks.errors import ConfigError, ContractError, DeltaworksError, FencedError

_PR_SET_PDEATHSIG = 1
ERROR_PREFIX = "DELTAWORKS_ERROR "
UI_PREFIX = "DELTAWORKS_UI "
#: Results are one line, a JSON list of records. Airflow stores them in its database, so longer lists are truncated.
_RESULTS_PREFIX = "[{"
_MAX_RESULTS_CHARACTERS = 48_000
_EXIT_CODE = re.compile(r"(?:Error code is|exit[ _]code)[ :=]+(-?\d+)", re.IGNORECASE)
_CONDITION = re.compile(r'"condition": ?"([A-Z0-9_]+)"')
_RETRYABLE = re.compile(r'"retryable": ?(true|false)')
_FINAL_EXIT_CODES = frozenset({ConfigError.exit_code, ContractError.exit_code, FencedError.exit_code})


def child_options(*, niceness: int = 0) -> dict[str, Any]:
    """Returns options of `subprocess.Popen` for a child that dies with this process.

    Standard input is closed. An inherited one would be the socket to the task's supervisor, which waits a minute for
    that socket after the task has died. On Linux the kernel kills the child when this process dies. On other systems,
    and for grandchildren, the child's parent watchdog does this within seconds.

    Args:
        niceness: the niceness of the child and its descendants, 0 to 19. Linux only.
    """
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL}
    if sys.platform == "linux":
        options["preexec_fn"] = _kill_with_parent(os.getpid(), niceness)
    return options


def _kill_with_parent(parent: int, niceness: int) -> Callable[[], None]:
    # Loaded before the fork, because nothing may be imported between fork and exec.
    prctl = ctypes.CDLL(None).prctl

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the request took effect
            os._exit(1)
        os.nice(niceness)

    return before_exec


@dataclass(slots=True)
class JobOutput:
    """Parses a job's output line by line and reports its Spark UI, results and error."""

    on_ui_address: Callable[[str], None] | None = None
    on_results: Callable[[list[Any]], None] | None = None
    error: DeltaworksError | None = field(default=None, init=False)

    def parse_lines(self, lines: Iterable[str]) -> Iterator[str]:
        """Parses lines of output and yields them unchanged."""
        for line in lines:
            self.parse_line(line)
            yield line

    def parse_line(self, line: str) -> None:
        """Parses one line of output."""
        text = line.strip()
        if text.startswith(ERROR_PREFIX):
            self.error = parse_error(text) or self.error
        elif text.startswith(UI_PREFIX) and self.on_ui_address is not None:
            address = text.removeprefix(UI_PREFIX).strip()
            # It becomes a link in the browser, so only web addresses are accepted.
            if address.startswith(("http://", "https://")):
                self.on_ui_address(address)
        elif text.startswith(_RESULTS_PREFIX) and self.on_results is not None:
            results = parse_results(text)
            if results:
                self.on_results(results)


def parse_results(text: str) -> list[Any]:
    """Returns the records of a results line, empty for invalid JSON.

    Long lists are truncated; the last record then counts the omitted ones.
    """
    try:
        records = json.loads(text)
    except ValueError:
        return []
    fitting: list[Any] = []
    length = 0
    for record in records:
        length += len(json.dumps(record))
        if length > _MAX_RESULTS_CHARACTERS:
            return [*fitting, {"omitted": len(records) - len(fitting)}]
        fitting.append(record)
    return fitting


def parse_error(text: str) -> DeltaworksError | None:
    """Returns the last error line of a text as an error; None if the text has none.

    Masking of secrets may have damaged the line's JSON; condition and `retryable` are then read by pattern.
    """
    start = text.rfind(ERROR_PREFIX)
    if start < 0:
        return None
    line = text[start:].splitlines()[0].removeprefix(ERROR_PREFIX)
    try:
        record: dict[str, Any] = json.loads(line)
    except ValueError:
        condition, retryable = _CONDITION.search(line), _RETRYABLE.search(line)
        if condition is None:
            return None
        record = {"condition": condition[1], "retryable": retryable is None or retryable[1] == "true"}
    return DeltaworksError(
        str(record.get("condition", "JOB_FAILED")),
        str(record.get("message", "The job's message could not be read.")),
        hint=str(record.get("hint", "")),
        retryable=bool(record.get("retryable", True)),
    )


def parse_exit_code(text: str) -> int | None:
    """Returns the exit code that a launcher's message names, or None."""
    match = _EXIT_CODE.search(text)
    return int(match[1]) if match else None


def error_of(exception: BaseException) -> DeltaworksError | None:
    """Returns an exception as a Deltaworks error, if it is one or its text contains an error line; None otherwise."""
    if isinstance(exception, DeltaworksError):
        return exception
    text = str(exception)
    error = parse_error(text)
    if error is None and parse_exit_code(text) in _FINAL_EXIT_CODES:
        code = parse_exit_code(text)
        return DeltaworksError("JOB_FAILED", f"The job ended with exit code {code}.", retryable=False)
    return error
