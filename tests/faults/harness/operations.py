"""Work done over and over beside a stream, and what became of each operation: a line of a file as it begins and ends.

An operation is *done*, at once or after attempts that failed in a way that says "try again" (`retried` has their
conditions), or it has *failed*: for another reason, or because no attempt was let through within its bound.
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

#: A conflict is over, and maintenance that is at work has ended, within this.
BOUND_SECONDS = 400.0
#: Not foreseen, whatever a launcher does with it.
_UNFORESEEN = "JOB_FAILED"
Counts = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation; `begun` is how it is while it has not ended. Seconds are of all its attempts together."""

    role: str
    number: int
    outcome: Literal["begun", "done", "failed"] = "begun"
    seconds: float = 0.0
    retried: tuple[str, ...] = ()
    error: str = ""
    counts: Counts = field(default_factory=dict)


class Operations:
    """Performs the operations of one process, and puts them on record."""

    def __init__(self, records: Path, chance: random.Random) -> None:
        self._records = records
        self._chance = chance
        self._numbers: Counter[str] = Counter()

    def perform(self, role: str, attempt: Callable[[], Counts], *, retried_conditions: tuple[str, ...] = ()) -> bool:
        """One operation, tried until it is done or fails; whether it is done.

        Args:
            attempt: what is tried; it returns what it has to show.
            asked_again: conditions after which a person asks again, beside those that are said to be retryable.
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
    """All operations of these files, each as it ended, or as begun where its process did not live to see its end."""
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
    """All operations of one role."""

    role: str
    started: int = 0
    done: int = 0
    failed: int = 0
    longest: float = 0.0
    done_after_retries: int = 0
    #: How many attempts each condition ended.
    retried: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)


def tallies(operations: list[Operation]) -> dict[str, Tally]:
    """By role. What has begun and not ended has failed."""
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
