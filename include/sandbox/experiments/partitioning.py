"""Two layouts of one table, measured: partitions by organisation and date against organisations Z-ordered by date.

The same rows are appended to all sides in the same batches, as a stream does it, one file for each partition a batch
touches. Then come rounds, in each of which a side inserts some batches, applies a mutation batch with one MERGE and is
read before and after its OPTIMIZE, which belongs to the time of its inserts. Sides take turns in each round and the
order turns round after it; the first round warms the JVM up and counts for nothing. Every answer of a side has to be
that of the others, and in the end all hold the same rows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession

from deltaworks.errors import ContractError
from deltaworks.specs.storage import StorageSpec
from sandbox.experiments.engagement_rows import Workload, batch_rows, rename_requests
from sandbox.experiments.file_sizes import OrgFiles, org_files
from sandbox.experiments.reads import Read, reads_of
from sandbox.experiments.schemes import BY_DATE, BY_ORG, BY_ORG_VECTORS, Scheme, SchemeTable
from sandbox.experiments.scratch_folder import scratch_folder

#: New layout's time divided by the old's, as those published who moved such a table.
PUBLISHED: Mapping[str, float] = {"read": 0.667, "update": 0.25, "insert": 1.1}
Progress = Callable[[str], None]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class SideResult:
    """What one side took. Seconds of every counted round by operation; `parts` are medians of what they are made of."""

    scheme: Scheme
    load_seconds: float
    seconds: Mapping[str, tuple[float, ...]]
    parts: Mapping[str, float]
    files: OrgFiles

    def median(self, operation: str) -> float:
        """The median of an operation's rounds, in seconds."""
        return statistics.median(self.seconds[operation])


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitioningResult:
    """All sides, the old layout first. `rows` is what each table held in the end."""

    workload: Workload
    sides: tuple[SideResult, ...]
    rows: int

    def side(self, scheme: Scheme) -> SideResult:
        """The result of one layout."""
        return next(side for side in self.sides if side.scheme.name == scheme.name)

    def ratio(self, operation: str, scheme: Scheme = BY_ORG) -> float:
        """The time of `scheme` divided by that of the layout by date."""
        return self.side(scheme).median(operation) / self.side(BY_DATE).median(operation)


class _Side:
    """A table and the time its operations took so far."""

    def __init__(self, table: SchemeTable) -> None:
        self.table = table
        self.load_seconds = 0.0
        self.rounds: list[dict[str, float]] = []

    def result(self, workload: Workload, counted: Sequence[Mapping[str, float]]) -> SideResult:
        """What the side took in the rounds that count."""
        names = sorted({name for taken in counted for name in taken} - set(PUBLISHED))
        return SideResult(
            scheme=self.table.scheme,
            load_seconds=self.load_seconds,
            seconds={name: tuple(taken[name] for taken in counted) for name in PUBLISHED},
            parts={name: statistics.median(taken[name] for taken in counted) for name in names},
            files=org_files(self.table.sizes_by_org(), workload),
        )


def run_partitioning(
    spark: SparkSession,
    storage: StorageSpec,
    workload: Workload,
    *,
    prefix: str,
    repeats: int = 3,
    max_file_bytes: int = 2 << 20,
    deletion_vectors: bool = False,
    reads: Sequence[str] = (),
    warm_up: bool = True,
    keep: bool = False,
    progress: Progress = lambda line: None,
) -> PartitioningResult:
    """Run the experiment in the folder `prefix` of `storage`, which has to be new.

    It is removed in the end, after an error too. Nothing else of the storage is read or written. One at a time per
    session, since settings of the session change meanwhile.

    Args:
        repeats: counted rounds.
        max_file_bytes: how large OPTIMIZE makes files.
        deletion_vectors: a third side, Z-ordered too, whose MERGE marks rows instead of rewriting their files.
        reads: names of the reads to ask, all of `experiments.reads` by default.
        warm_up: a round that does not count comes first; without it times tell little.
        keep: leave the tables where they are.

    Raises:
        ContractError: EXPERIMENT_SIDES_DIFFER, EXPERIMENT_FOLDER_TAKEN.
    """
    schemes = [BY_DATE, BY_ORG, *([BY_ORG_VECTORS] if deletion_vectors else [])]
    sides = [
        _Side(SchemeTable(spark, storage, f"{prefix}/{scheme.name}", scheme, max_file_bytes=max_file_bytes))
        for scheme in schemes
    ]
    with scratch_folder(storage, prefix, keep=keep):
        _load(spark, sides, workload, progress)
        for ordinal in range(0 if warm_up else 1, repeats + 1):
            _round(spark, sides, workload, ordinal, named=reads, progress=progress)
        rows = _require_equal("rows in the end", {side.table.scheme.name: side.table.fingerprint() for side in sides})[
            0
        ]
        results = tuple(side.result(workload, side.rounds[-repeats:]) for side in sides)
        return PartitioningResult(workload=workload, sides=results, rows=rows)


def _load(spark: SparkSession, sides: Sequence[_Side], workload: Workload, progress: Progress) -> None:
    """Append what the tables have beforehand, with the OPTIMIZEs that fall due meanwhile."""
    for batch in range(workload.load_batches):
        for side in sides if batch % 2 else reversed(sides):
            started = time.perf_counter()
            side.table.append(batch_rows(spark, workload, batch))
            if (batch + 1) % workload.batches_per_round == 0:
                side.table.optimize()
            side.load_seconds += time.perf_counter() - started
    for side in sides:
        started = time.perf_counter()
        side.table.optimize()
        side.load_seconds += time.perf_counter() - started
        progress(f"{side.table.scheme.name}: loaded in {side.load_seconds:.1f} s")


def _round(
    spark: SparkSession,
    sides: Sequence[_Side],
    workload: Workload,
    ordinal: int,
    *,
    named: Sequence[str],
    progress: Progress,
) -> None:
    first = workload.load_batches + ordinal * workload.batches_per_round
    last = first + workload.batches_per_round
    batches = [batch_rows(spark, workload, batch).persist() for batch in range(first, last)]
    requests = rename_requests(spark, workload, ordinal, last).persist()
    reads = [read for read in reads_of(spark, workload, last) if not named or read.name in named]
    for frame in (*batches, requests):
        frame.count()
    answers: dict[str, list[Any]] = {}
    for side in sides if ordinal % 2 else list(reversed(sides)):
        taken, answers[side.table.scheme.name] = _side_round(side.table, batches, requests, reads, ordinal)
        side.rounds.append(taken)
        durations = ", ".join(f"{name} {taken[name]:.2f} s" for name in PUBLISHED)
        kind = f"round {ordinal}" if ordinal else "warm-up"
        progress(f"{side.table.scheme.name}: {durations} ({kind})")
    for frame in (*batches, requests):
        frame.unpersist()
    _require_equal(f"answers of round {ordinal}", answers)


def _side_round(
    table: SchemeTable, batches: Sequence[DataFrame], requests: DataFrame, reads: Sequence[Read], ordinal: int
) -> tuple[dict[str, float], list[Any]]:
    """One round of one side: seconds by operation and part, and what its reads answered.

    `planning` is of all reads, and part of their seconds.
    """
    taken: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        result = work()
        taken[name] = taken.get(name, 0.0) + time.perf_counter() - started
        return result

    def ask() -> list[Any]:
        answers = [timed(f"read_{read.name}", partial(table.read, read.where, read.select)) for read in reads]
        taken["planning"] = taken.get("planning", 0.0) + sum(answer.planning_seconds for answer in answers)
        return [answer.rows for answer in answers]

    for batch in batches:
        timed("append", partial(table.append, batch))
    timed("update", partial(table.update, requests, ordinal))
    answers = ask()
    timed("optimize", table.optimize)
    again = ask()
    _require_equal("answers before and after OPTIMIZE", {"before": answers, "after": again})
    taken["read"] = sum(seconds for name, seconds in taken.items() if name.startswith("read_"))
    taken["insert"] = taken["append"] + taken["optimize"]
    return taken, answers


def _require_equal(what: str, values: Mapping[str, Value]) -> Value:
    """The value that all sides share.

    Raises:
        ContractError: EXPERIMENT_SIDES_DIFFER.
    """
    (first, value), *others = values.items()
    for name, other in others:
        if other != value:
            raise ContractError(
                "EXPERIMENT_SIDES_DIFFER",
                f"{what}: {first} has {str(value)[:200]} and {name} has {str(other)[:200]}; they have to be the same.",
                hint="A measurement of different work means nothing. Run it again with --keep, and compare the tables.",
            )
    return value
