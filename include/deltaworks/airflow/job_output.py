"""What a job says of itself in its output: the address of its Spark UI, its results and, last, its error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from deltaworks.errors import DeltaworksError

ERROR_PREFIX = "DELTAWORKS_ERROR "
UI_PREFIX = "DELTAWORKS_UI "
#: Results are one line, a JSON list of records. More of it than this is left out: Airflow keeps it in its database.
_RESULTS_PREFIX = "[{"
_RESULTS_LENGTH = 48_000
_EXIT_CODE = re.compile(r"(?:Error code is|exit code)[ :]+(-?\d+)", re.IGNORECASE)
_CONDITION = re.compile(r'"condition": ?"([A-Z0-9_]+)"')
_RETRYABLE = re.compile(r'"retryable": ?(true|false)')


@dataclass(slots=True)
class JobOutput:
    """Listens to a job's lines as they pass."""

    on_ui: Callable[[str], None] | None = None
    on_results: Callable[[list[Any]], None] | None = None
    error: DeltaworksError | None = field(default=None, init=False)

    def listen(self, lines: Iterable[str]) -> Iterator[str]:
        """The same lines, noting what they say."""
        for line in lines:
            self.hear(line)
            yield line

    def hear(self, line: str) -> None:
        """Note what one line says."""
        text = line.strip()
        if text.startswith(ERROR_PREFIX):
            self.error = read_error(text) or self.error
        elif text.startswith(UI_PREFIX) and self.on_ui is not None:
            address = text.removeprefix(UI_PREFIX).strip()
            # It becomes a link in people's browsers, so only what a browser may open passes.
            if address.startswith(("http://", "https://")):
                self.on_ui(address)
        elif text.startswith(_RESULTS_PREFIX) and self.on_results is not None:
            results = read_results(text)
            if results:
                self.on_results(results)


def read_results(text: str) -> list[Any]:
    """The records of a line of results, as many as fit, the last one counting those left out; none of another line."""
    try:
        records = json.loads(text)
    except ValueError:
        return []
    kept: list[Any] = []
    length = 0
    for record in records:
        length += len(json.dumps(record))
        if length > _RESULTS_LENGTH:
            return [*kept, {"left_out": len(records) - len(kept)}]
        kept.append(record)
    return kept


def read_error(text: str) -> DeltaworksError | None:
    """The last error line in a text, as an error again; None where there is none.

    Masking of secrets may have damaged the line's JSON: then condition and verdict are still read.
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


def read_exit_code(text: str) -> int | None:
    """The exit code a launcher's message names."""
    found = _EXIT_CODE.search(text)
    return int(found[1]) if found else None
