"""Compares two layouts of a table: partitions by organisation and date, and by organisation with Z-order by date.

All tables get the same batches of rows, one file per batch and partition, as a stream writes them. In each round a
table gets some batches and one mutation batch (a MERGE). It is queried before and after its OPTIMIZE, whose time counts
as insert time. The order of the tables is reversed every round. The first round warms up the JVM and is not counted.
The query results of all tables must be equal, and so must their rows at the end.
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

#: Published ratios from a migration of such a table: the new layout's time divided by the old one's.
PUBLISHED: Mapping[str, float] = {"read": 0.667, "update": 0.25, "insert": 1.1}
Progress = Callable[[str], None]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeResult:
    """Results of one layout: seconds of each counted round by operation; `parts` are median seconds of an operation's
    steps.
    """

    scheme: Scheme
    load_seconds: float
    seconds: Mapping[str, tuple[float, ...]]
    parts: Mapping[str, float]
    files: OrgFiles

    def median(self, operation: str) -> float:
        """Returns the median seconds of an operation over all rounds."""
        return statistics.median(self.seconds[operation])


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitioningResult:
    """Results of all layouts, the old one first. `rows` is the number of rows of each table at the end."""

    workload: Workload
    results: tuple[SchemeResult, ...]
    rows: int

    def result_of(self, scheme: Scheme) -> SchemeResult:
        """Returns the result of one layout."""
        return next(result for result in self.results if result.scheme.name == scheme.name)

    def ratio(self, operation: str, scheme: Scheme = BY_ORG) -> float:
        """Returns the median time of `scheme` divided by that of the layout partitioned by date."""
        return self.result_of(scheme).median(operation) / self.result_of(BY_DATE).median(operation)


class _MeasuredTable:
    """A table and the seconds of its operations by round."""

    def __init__(self, table: SchemeTable) -> None:
        self.table = table
        self.load_seconds = 0.0
        self.rounds: list[dict[str, float]] = []

    def result(self, workload: Workload, counted: Sequence[Mapping[str, float]]) -> SchemeResult:
        """Returns the results of the counted rounds."""
        names = sorted({name for seconds in counted for name in seconds} - set(PUBLISHED))
        return SchemeResult(
            scheme=self.table.scheme,
            load_seconds=self.load_seconds,
            seconds={name: tuple(seconds[name] for seconds in counted) for name in PUBLISHED},
            parts={name: statistics.median(seconds[name] for seconds in counted) for name in names},
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
    """Runs the experiment in the folder `prefix` of `storage`, which must not exist.

    Removes the folder at the end, also after an error. Reads and writes nothing else in the storage. Run one experiment
    at a time per session, because it changes session settings.

    Args:
        repeats: number of counted rounds.
        max_file_bytes: target file size of OPTIMIZE.
        deletion_vectors: adds a third table, also Z-ordered, whose MERGE writes deletion vectors instead of rewriting
            files.
        reads: names of the queries to run; by default all of `experiments.reads`.
        warm_up: starts with a round that is not counted; times are unreliable without it.
        keep: keeps the tables.

    Raises:
        ContractError: EXPERIMENT_RESULTS_DIFFER, EXPERIMENT_FOLDER_TAKEN.
    """
    schemes = [BY_DATE, BY_ORG, *([BY_ORG_VECTORS] if deletion_vectors else [])]
    tables = [
        _MeasuredTable(SchemeTable(spark, storage, f"{prefix}/{scheme.name}", scheme, max_file_bytes=max_file_bytes))
        for scheme in schemes
    ]
    with scratch_folder(storage, prefix, keep=keep):
        _load(spark, tables, workload, progress)
        for ordinal in range(0 if warm_up else 1, repeats + 1):
            _round(spark, tables, workload, ordinal, named=reads, progress=progress)
        rows = _require_equal(
            "rows at the end", {measured.table.scheme.name: measured.table.fingerprint() for measured in tables}
        )[0]
        results = tuple(measured.result(workload, measured.rounds[-repeats:]) for measured in tables)
        return PartitioningResult(workload=workload, results=results, rows=rows)


def _load(spark: SparkSession, tables: Sequence[_MeasuredTable], workload: Workload, progress: Progress) -> None:
    """Loads the tables before the first round, with an OPTIMIZE after every `batches_per_round` batches."""
    for batch in range(workload.load_batches):
        for measured in tables if batch % 2 else reversed(tables):
            started = time.perf_counter()
            measured.table.append(batch_rows(spark, workload, batch))
            if (batch + 1) % workload.batches_per_round == 0:
                measured.table.optimize()
            measured.load_seconds += time.perf_counter() - started
    for measured in tables:
        started = time.perf_counter()
        measured.table.optimize()
        measured.load_seconds += time.perf_counter() - started
        progress(f"{measured.table.scheme.name}: loaded in {measured.load_seconds:.1f} s")


def _round(
    spark: SparkSession,
    tables: Sequence[_MeasuredTable],
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
    for measured in tables if ordinal % 2 else list(reversed(tables)):
        seconds, answers[measured.table.scheme.name] = _run_table_round(
            measured.table, batches, requests, reads, ordinal
        )
        measured.rounds.append(seconds)
        durations = ", ".join(f"{name} {seconds[name]:.2f} s" for name in PUBLISHED)
        kind = f"round {ordinal}" if ordinal else "warm-up"
        progress(f"{measured.table.scheme.name}: {durations} ({kind})")
    for frame in (*batches, requests):
        frame.unpersist()
    _require_equal(f"answers of round {ordinal}", answers)


def _run_table_round(
    table: SchemeTable, batches: Sequence[DataFrame], requests: DataFrame, reads: Sequence[Read], ordinal: int
) -> tuple[dict[str, float], list[Any]]:
    """Runs one round of one table; returns seconds by operation and step, and the query results.

    `planning` is the planning time of all queries, which their seconds include.
    """
    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        result = work()
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - started
        return result

    def ask() -> list[Any]:
        answers = [timed(f"read_{read.name}", partial(table.read, read.where, read.select)) for read in reads]
        seconds["planning"] = seconds.get("planning", 0.0) + sum(answer.planning_seconds for answer in answers)
        return [answer.rows for answer in answers]

    for batch in batches:
        timed("append", partial(table.append, batch))
    timed("update", partial(table.update, requests, ordinal))
    answers = ask()
    timed("optimize", table.optimize)
    again = ask()
    _require_equal("answers before and after OPTIMIZE", {"before": answers, "after": again})
    seconds["read"] = sum(value for name, value in seconds.items() if name.startswith("read_"))
    seconds["insert"] = seconds["append"] + seconds["optimize"]
    return seconds, answers


def _require_equal(what: str, values: Mapping[str, Value]) -> Value:
    """Returns the value that all tables share.

    Raises:
        ContractError: EXPERIMENT_RESULTS_DIFFER.
    """
    (first, value), *others = values.items()
    for name, other in others:
        if other != value:
            raise ContractError(
                "EXPERIMENT_RESULTS_DIFFER",
                f"{what}: {first} has {str(value)[:200]} and {name} has {str(other)[:200]}; they have to be the same.",
            )
    return value
