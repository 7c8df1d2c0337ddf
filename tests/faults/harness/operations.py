"""Repeats operations next to a stream and records each one: a line in a file at its start and at its end.

An operation is *done*, immediately or after attempts that ended with a retryable condition (listed in `retried`), or it
has *failed*: with another error, or because no attempt succeeded within the time limit.
"""

from __future__ import annotations

import json
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from deltaworks.control.job import as_deltaworks_error
from deltaworks.errors import DeltaworksError

#: Conflicts, and maintenance that is running, end within this time.
BOUND_SECONDS = 400.0
#: An unexpected error, even if a launcher would retry it.
_UNFORESEEN = "JOB_FAILED"
Counts = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation; `begun` until it has ended. Seconds cover all its attempts."""

    role: str
    number: int
    outcome: Literal["begun", "done", "failed"] = "begun"
    seconds: float = 0.0
    retried: tuple[str, ...] = ()
    error: str = ""
    counts: Counts = field(default_factory=dict)


class Operations:
    """Performs and records the operations of one process."""

    def __init__(self, records: Path, chance: random.Random) -> None:
        self._records = records
        self._chance = chance
        self._numbers: Counter[str] = Counter()

    def perform(self, role: str, attempt: Callable[[], Counts], *, retried_conditions: tuple[str, ...] = ()) -> bool:
        """Retries one operation until it is done or fails; returns whether it is done.

        Args:
            attempt: performs the operation and returns its counts.
            retried_conditions: further conditions after which it is retried, besides those marked retryable.
        """
        self._numbers[role] += 1
        begun = Operation(role=role, number=self._numbers[role])
        self._record(begun)
        started, retried = time.monotonic(), []
        error, counts = "", dict[str, float]()
        while True:
            try:
                counts = dict(attempt())
            except Exception as problem:
                found = as_deltaworks_error(problem)
                clean = (found.retryable and found.condition != _UNFORESEEN) or found.condition in retried_conditions
                if clean and time.monotonic() - started < BOUND_SECONDS:
                    retried.append(found.condition)
                    time.sleep(self._chance.uniform(0.5, 2.0))
                    continue
                error = _told(found, problem)
            break
        outcome: Literal["done", "failed"] = "failed" if error else "done"
        self._record(
            Operation(
                role=role,
                number=begun.number,
                outcome=outcome,
                seconds=time.monotonic() - started,
                retried=tuple(retried),
                error=error,
                counts=counts,
            )
        )
        return not error

    def _record(self, operation: Operation) -> None:
        with self._records.open("a") as file:
            file.write(json.dumps({"at": time.time(), **asdict(operation)}) + "\n")


def _told(found: DeltaworksError, problem: BaseException) -> str:
    where = traceback.extract_tb(problem.__traceback__)[-1]
    return f"[{found.condition}] {found.message} ({Path(where.filename).name}:{where.lineno})"


def read_operations(records: Iterable[Path]) -> list[Operation]:
    """Returns all operations in these files in their last recorded state: `begun` where the process died."""
    found: dict[tuple[Path, str, int], Operation] = {}
    for path in records:
        for line in path.read_text().splitlines():
            said = json.loads(line)
            said.pop("at")
            operation = Operation(**{**said, "retried": tuple(said["retried"])})
            found[path, operation.role, operation.number] = operation
    return list(found.values())


@dataclass(slots=True)
class Tally:
    """Totals of all operations of one role."""

    role: str
    started: int = 0
    done: int = 0
    failed: int = 0
    longest: float = 0.0
    done_after_retries: int = 0
    #: Number of attempts ended by each condition.
    retried: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)


def tallies(operations: list[Operation]) -> dict[str, Tally]:
    """Returns the totals by role. Operations that have not ended count as failed."""
    found: dict[str, Tally] = {}
    for each in operations:
        tally = found.setdefault(each.role, Tally(each.role))
        tally.started += 1
        tally.longest = max(tally.longest, each.seconds)
        tally.retried.update(each.retried)
        if each.outcome == "done":
            tally.done += 1
            tally.done_after_retries += bool(each.retried)
            tally.counts.update(each.counts)  # type: ignore[arg-type]
        else:
            tally.failed += 1
            tally.errors.append(each.error or f"{each.role} {each.number} never ended")
    return found
