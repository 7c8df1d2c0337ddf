"""Starts a task's child process, ends it with the task, and parses Spark UI, results and error from its output.

Output also contains data of producers and requesters, such as object keys. The task obeys only lines with the nonce
that it gave to this process, which is another one at every start.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from deltaworks.errors import NONCE_VARIABLE, ConfigError, ContractError, DeltaworksError, FencedError, line_prefix

_PR_SET_PDEATHSIG = 1
#: Results are one line, a JSON list of records. Airflow stores them in its database, so longer lists are truncated.
_MAX_RESULTS_CHARACTERS = 48_000
_EXIT_CODE = re.compile(r"(?:Error code is|exit[ _]code)[ :=]+(-?\d+)", re.IGNORECASE)
#: What the provider puts between its own message and the job's last lines of output.
_OUTPUT_HEADING = "\nLast spark-submit output:\n"
_CONDITION = re.compile(r'"condition": ?"([A-Z0-9_]+)"')
_RETRYABLE = re.compile(r'"retryable": ?(true|false)')
_MAX_FAILURE_LENGTH = 1_000
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
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    error: DeltaworksError | None = field(default=None, init=False)

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of the job, which then marks its lines."""
        return {NONCE_VARIABLE: self.nonce}

    def parse_lines(self, lines: Iterable[str]) -> Iterator[str]:
        """Parses lines of output and yields them unchanged, without the results, which the log has as a table."""
        for line in lines:
            self.parse_line(line)
            if self._text_of(line, "RESULTS") is None:
                yield line

    def parse_line(self, line: str) -> None:
        """Parses one line of output."""
        if (record := self._text_of(line, "ERROR")) is not None:
            self.error = parse_error(record) or self.error
        elif (address := self._text_of(line, "UI")) is not None and self.on_ui_address is not None:
            # It becomes a link in the browser, so only web addresses are accepted.
            if address.startswith(("http://", "https://")):
                self.on_ui_address(address)
        elif (records := self._text_of(line, "RESULTS")) is not None and self.on_results is not None:
            results = parse_results(records)
            if results:
                self.on_results(results)

    def _text_of(self, line: str, kind: str) -> str | None:
        prefix = line_prefix(kind, self.nonce)
        return line.removeprefix(prefix).strip() if line.startswith(prefix) else None


def parse_results(text: str) -> list[Any]:
    """Returns the records of a results line, empty unless it is a JSON list of objects.

    Long lists are truncated; the last record then counts the omitted ones.
    """
    try:
        records = json.loads(text)
    except ValueError:
        return []
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        return []
    fitting: list[Any] = []
    length = 0
    for record in records:
        length += len(json.dumps(record))
        if length > _MAX_RESULTS_CHARACTERS:
            return [*fitting, {"omitted": len(records) - len(fitting)}]
        fitting.append(record)
    return fitting


def parse_error(record: str) -> DeltaworksError | None:
    """Returns the error of an error line's record; None if it has none.

    Masking of secrets may have damaged the JSON; condition and `retryable` are then read by pattern.
    """
    try:
        return DeltaworksError.from_record(json.loads(record))
    except (ValueError, AttributeError):
        condition, retryable = _CONDITION.search(record), _RETRYABLE.search(record)
    if condition is None:
        return None
    is_retryable = retryable is None or retryable[1] == "true"
    return DeltaworksError.from_record({"condition": condition[1], "retryable": is_retryable})


def parse_exit_code(text: str) -> int | None:
    """Returns the exit code at the end of a launcher's own message, or None. Before it stand the job's arguments, and
    after it the job's output.
    """
    codes = _EXIT_CODE.findall(text.partition(_OUTPUT_HEADING)[0])
    return int(codes[-1]) if codes else None


def error_of(exception: BaseException) -> DeltaworksError | None:
    """Returns an exception as a Deltaworks error, if it is one or has the exit code of one that is not retryable; None
    otherwise.
    """
    if isinstance(exception, DeltaworksError):
        return exception
    code = parse_exit_code(str(exception))
    if code in _FINAL_EXIT_CODES:
        return DeltaworksError("JOB_FAILED", f"The job ended with exit code {code}.", retryable=False)
    return None


def failure_of(exception: object) -> DeltaworksError:
    """Returns what a task failed with. Without an error line of the job, this is its exit code and last line of output,
    or the exception, but not the command that the launcher repeats.
    """
    error = error_of(exception) if isinstance(exception, BaseException) else None
    if error is not None:
        return error
    text = str(exception or "It ended without an error.")
    code, lines = parse_exit_code(text), text.partition(_OUTPUT_HEADING)[2].split("\n")
    if code is None:
        return DeltaworksError("JOB_FAILED", text[:_MAX_FAILURE_LENGTH])
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return DeltaworksError(
        "JOB_FAILED", f"The job ended with exit code {code}{f': {last}' if last else '.'}"[:_MAX_FAILURE_LENGTH]
    )
