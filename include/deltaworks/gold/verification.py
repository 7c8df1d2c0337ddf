"""Proves published gold: compares partitions of gold tables with their SQL over the inputs, computed independently.

A partition is compared if no change of the inputs since the table's last build affects it. Then its rows must equal
the answer over the current inputs, which therefore stands for the versions the build has read: OPTIMIZE and VACUUM
between the two make no difference. If the log no longer tells what has changed, or the definition has changed, the
table is not comparable and the record says why; it is never taken as equal.

Each run is bounded in partitions and bytes of input. Partitions that differed last time come first; then, in turn, the
newest one never compared and the one compared longest ago, so new partitions cannot starve the others.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake import DeltaTable

from deltaworks.alerts.raising import raise_alert, resolve_alert
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.job import error_of_table
from deltaworks.control.objects import open_objects
from deltaworks.control.summaries.jobs import GoldVerification, read_gold_verification
from deltaworks.errors import DeltaworksError, FencedError, TransientError
from deltaworks.gold.build import log_failure, raise_failures
from deltaworks.gold.input_views import InputViews, filter_part
from deltaworks.gold.parts import shift_dates
from deltaworks.gold.pinned_inputs import InputSizes, pin_inputs, read_built_from
from deltaworks.gold.plan import GoldPlan, affected_days, dated_plan, full_plan, select_gold_tables
from deltaworks.gold.row_differences import CURRENT, REBUILT, SPARK, RowComparison
from deltaworks.gold.table_build import TableJob, plan_job
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.gold import AffectsSpec, GoldTableSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
CAUSE: Final = "GOLD_DIFFERS"
#: The only partition of a table that is always built completely.
ALL_ROWS: Final = "all rows"
_MAX_NAMED_PARTITIONS = 10


class NotComparableError(Exception):
    """The table cannot be compared now; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationLimits:
    """The most partitions of a table that a run compares, and the most bytes of input files that it reads for them."""

    partitions: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Partitions to compare: the job that computes them from pinned inputs, and the table opened at one version."""

    job: TableJob
    published: DeltaTable


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldVerificationResult:
    """The result for one table.

    - `partitions`: the compared ones; `differing_rows`: the rows that only one side has, None if nothing was compared.
    - `deferred`: partitions left to later runs; `bytes`: of the input files of the compared ones.
    - `reason`: why partitions, or all of the table, could not be compared.
    """

    table: str
    partitions: tuple[str, ...] = ()
    differing_rows: int | None = None
    differing: Mapping[str, int]
    deferred: int = 0
    bytes: int = 0
    seconds: float = 0.0
    reason: str = ""


def verify_gold(
    catalog: Catalog,
    pipeline: str,
    *,
    limits: VerificationLimits,
    compare: Callable[[Comparison], Mapping[str, int]],
    tables: Sequence[str] | None = None,
    now: dt.datetime | None = None,
) -> list[GoldVerificationResult]:
    """Compares partitions of gold tables with their SQL, raises or resolves GOLD_DIFFERS, and records the outcome.

    Changes no table. Safe during appends and builds; idempotent but for the rotation.

    Args:
        compare: returns the differing rows of a comparison by partition, such as `compare_with_spark`.

    Raises:
        ConfigError: GOLD_TABLE_UNKNOWN, or an error of the SQL.
        DeltaworksError: of a table that cannot be read, after all were tried; GOLD_TABLES_FAILED for several.
    """
    spec = catalog.pipeline(pipeline)
    selection = select_gold_tables(spec, tables)
    results: list[GoldVerificationResult] = []
    errors: list[DeltaworksError] = []
    for table in selection:
        verifier = _TableVerifier(catalog, spec, table, now=now or utc_now())
        try:
            results.append(verifier.run(limits, compare))
        except Exception as error:  # the other tables are still compared
            failure = error_of_table(error, table.name)
            if isinstance(failure, TransientError | FencedError):
                raise
            log_failure(pipeline, table.name, failure, error)
            errors.append(failure)
    raise_failures(pipeline, {}, errors, tables=len(selection))
    return results


@dataclass(frozen=True, slots=True, kw_only=True)
class _ComparableState:
    """A table at one version with its inputs; `closed` are the `existing` partitions that must equal their answer."""

    published: DeltaTable
    job: TableJob
    existing: tuple[str, ...]
    closed: tuple[str, ...]


class _TableVerifier:
    """Compares partitions of one gold table."""

    def __init__(self, catalog: Catalog, spec: PipelineSpec, table: GoldTableSpec, *, now: dt.datetime) -> None:
        self._catalog, self._spec, self._table, self._now = catalog, spec, table, now
        self._lake, self._objects = Lake(catalog.environment.lake), open_objects(catalog.environment.lake)
        self._subject = f"{spec.pipeline}.{table.name}"
        self._record = read_gold_verification(self._objects, spec.pipeline, table.name) or GoldVerification(
            pipeline=spec.pipeline, table=table.name, at=""
        )

    def run(
        self, limits: VerificationLimits, compare: Callable[[Comparison], Mapping[str, int]]
    ) -> GoldVerificationResult:
        """Compares the partitions of this run. The alert is raised before the record is written."""
        started = time.monotonic()
        try:
            state = self._comparable_state()
            sizes = InputSizes(state.job.inputs, self._spec.gold.dedupe)
            selected = select_partitions(
                state.closed, self._record, limits, size_of=lambda label: sizes.bytes_of(_plan_of(self._table, [label]))
            )
            differing: Mapping[str, int] = {}
            if selected.partitions:
                job = replace(state.job, plan=_plan_of(self._table, selected.partitions))
                differing = compare(Comparison(job=job, published=state.published))
        except NotComparableError as error:
            self._write(self._record.replace(partitions=(), differing_rows=0, deferred=0, reason=str(error)))
            return GoldVerificationResult(table=self._table.name, differing={}, reason=str(error))
        self._record_outcome(selected, differing, state)
        return GoldVerificationResult(
            table=self._table.name,
            partitions=selected.partitions,
            differing_rows=sum(differing.values()) if selected.partitions else None,
            differing=differing,
            deferred=len(state.closed) - len(selected.partitions),
            bytes=selected.bytes,
            seconds=time.monotonic() - started,
            reason=selected.reason,
        )

    def _comparable_state(self) -> _ComparableState:
        """Returns the opened table, a job with its pinned inputs, and the partitions that must equal their answer.

        Raises:
            NotComparableError
        """
        key = paths.table(self._spec.pipeline, self._table.name)
        # Opened before the inputs are pinned, so that they are at least as new as those it was built from.
        published = self._lake.open(key)
        if published is None:
            raise NotComparableError("it does not exist yet")
        inputs = pin_inputs(self._lake, self._spec, self._table.reads)
        job = plan_job(
            self._catalog, self._spec, self._lake, self._table, inputs, key=key, opened=published, now=self._now
        )
        built = read_built_from(self._lake, key, published)
        if built.is_traceable and (missing := sorted(built.versions.keys() - job.built_from.keys())):
            raise NotComparableError(f"its input {', '.join(missing)} does not exist")
        if job.plan.full:
            raise NotComparableError(f"its next build computes all rows: {job.plan.reason}")
        if self._table.affects == "all":
            return _ComparableState(published=published, job=job, existing=(ALL_ROWS,), closed=(ALL_ROWS,))
        existing = sorted(self._existing_partitions(published, job))
        output, today = job.plan.output.without_hours(), str(self._now.date())
        if self._table.affects == "same":
            waiting = {value for value in existing if job.plan.has_work and output.contains(value)}
        else:
            # Frozen dates lack their late rows.
            waiting = {date for date in existing if date >= today or output.contains(dt.date.fromisoformat(date))}
            waiting |= job.missing_late_rows.keys()
        closed = tuple(label for label in existing if label not in waiting)
        return _ComparableState(published=published, job=job, existing=tuple(existing), closed=closed)

    def _existing_partitions(self, published: DeltaTable, job: TableJob) -> set[str]:
        """Returns the partitions of the table, and those that its inputs have rows for."""
        values = _partition_values(published, self._table.partition_by)
        if self._table.affects == "same":
            return values.union(
                *(_partition_values(one.delta_table, self._table.partition_by) for one in job.inputs.values())
            )
        for name, pinned in job.inputs.items():
            affects = self._table.affects_for_input(name)
            if isinstance(affects, AffectsSpec) and pinned.date_column:
                dates = _dates(_partition_values(pinned.delta_table, pinned.date_column))
                values |= set(map(str, shift_dates(dates, affected_days(affects))))
        return set(map(str, _dates(values)))

    def _record_outcome(self, selected: Selection, differing: Mapping[str, int], state: _ComparableState) -> None:
        """Raises or resolves the alert, and then records what was compared. Partitions that are gone are forgotten."""
        compared, existing = set(selected.partitions), set(state.existing)
        at = self._now.isoformat(timespec="seconds")
        verified = {label: time for label, time in self._record.verified_at.items() if label in existing}
        before = {label: rows for label, rows in self._record.differing.items() if label in existing - compared}
        still = before | {label: rows for label, rows in differing.items() if rows}
        if still:
            self._raise(still)
        elif self._record.differing:
            summary = f"All partitions of {self._subject} that differed equal their SQL again."
            resolve_alert(self._objects, cause=CAUSE, subject=self._subject, summary=summary, now=self._now)
        self._write(
            self._record.replace(
                partitions=selected.partitions,
                differing_rows=sum(differing.values()),
                deferred=len(state.closed) - len(compared),
                reason=selected.reason,
                verified_at={**verified, **dict.fromkeys(selected.partitions, at)},
                differing=still,
            )
        )

    def _raise(self, differing: Mapping[str, int]) -> None:
        labels = sorted(differing)
        named = ", ".join(labels[:_MAX_NAMED_PARTITIONS])
        more = f" and {len(labels) - _MAX_NAMED_PARTITIONS} more" if len(labels) > _MAX_NAMED_PARTITIONS else ""
        raise_alert(
            self._objects,
            cause=CAUSE,
            subject=self._subject,
            summary=(
                f"{sum(differing.values()):,} rows of {self._subject} in {named}{more} differ from its SQL over the "
                "same inputs. They are still published."
            ),
            detail={"rows": sum(differing.values()), "partitions": dict(sorted(differing.items()))},
            now=self._now,
        )

    def _write(self, record: GoldVerification) -> None:
        written = record.replace(at=self._now.isoformat(timespec="seconds"))
        self._objects.put(paths.gold_verification(self._spec.pipeline, self._table.name), written.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The partitions that a run compares, in order of choice, with the bytes they read and why others are too large."""

    partitions: tuple[str, ...]
    bytes: int
    reason: str = ""


def select_partitions(
    closed: Sequence[str], record: GoldVerification, limits: VerificationLimits, *, size_of: Callable[[str], int]
) -> Selection:
    """Chooses partitions within the limits: those that differed, then new ones and old ones in turn. Pure.

    Args:
        closed: the partitions that can be compared.
        size_of: returns the bytes of input that a partition needs.
    """
    chosen: list[str] = []
    total, too_large = 0, []
    for label in _in_order(closed, record):
        if len(chosen) == limits.partitions:
            break
        size = size_of(label)
        if size > limits.bytes:
            too_large.append(label)
        elif total + size <= limits.bytes:
            chosen.append(label)
            total += size
        else:
            break
    reason = (
        f"{', '.join(too_large[:_MAX_NAMED_PARTITIONS])}: more than {limits.bytes / 1e6:,.0f} MB of input"
        if too_large
        else ""
    )
    return Selection(partitions=tuple(chosen), bytes=total, reason=reason)


def _in_order(closed: Sequence[str], record: GoldVerification) -> Iterator[str]:
    """Yields each partition once, in the order in which they are to be compared."""
    newest_first = sorted((label for label in closed if label not in record.verified_at), reverse=True)
    oldest_first = sorted(closed, key=lambda label: (record.verified_at.get(label, ""), label))
    yielded: set[str] = set()

    def not_yielded(labels: Iterable[str]) -> Iterator[str]:
        for label in labels:
            if label not in yielded:
                yielded.add(label)
                yield label

    yield from not_yielded(sorted((label for label in closed if label in record.differing), reverse=True))
    new, old = not_yielded(newest_first), not_yielded(oldest_first)
    while (label := next(new, None)) is not None:
        yield label
        if (label := next(old, None)) is not None:
            yield label
    yield from old


def _plan_of(table: GoldTableSpec, labels: Sequence[str]) -> GoldPlan:
    """Returns the plan that computes these partitions."""
    if table.affects == "all":
        return full_plan(table, "all rows are compared")
    if table.affects == "same":
        return GoldPlan(
            table, output_dates=None, input_dates=None, reason="values are compared", keys=frozenset(labels)
        )
    return dated_plan(table, frozenset(map(dt.date.fromisoformat, labels)))


def _partition_values(table: DeltaTable | None, column: str) -> set[str]:
    """Returns the values of a partition column in a table's files; empty if it is not partitioned by it."""
    if table is None or column not in table.metadata().partition_columns:
        return set()
    values = pa.table(table.get_add_actions(flatten=True)).column(f"partition.{column}").to_pylist()
    return {str(value) for value in values if value is not None}


def _dates(values: Iterable[str]) -> set[dt.date]:
    dates = set()
    for value in values:
        try:
            dates.add(dt.date.fromisoformat(value))
        except ValueError:
            continue
    return dates


def compare_with_spark(spark: SparkSession, lake: Lake, spec: PipelineSpec, comparison: Comparison) -> dict[str, int]:
    """Computes the SQL with Spark and returns the differing rows by partition.

    Shares no shortcut with builds: inputs are read by Delta's reader and duplicates found by Spark.

    Raises:
        NotComparableError: the columns of the answer are not those of the table.
        ConfigError: from `compute_answer`.
    """
    from deltaworks.gold.answer import compute_answer

    job, table = comparison.job, comparison.job.plan.table
    uri = lake.storage.spark_uri(job.key)
    reader = spark.read.format("delta").option("versionAsOf", comparison.published.version())
    with InputViews(spark, lake, job.inputs, spec.gold.dedupe, is_independent=True) as views:
        rebuilt = compute_answer(spark, job.plan, views, sql=job.sql, sql_path=job.sql_path)
        current = filter_part(reader.load(uri), job.plan.output, table.partition_by)
        columns, computed = (
            {field.name: field.dataType.simpleString() for field in rows.schema} for rows in (current, rebuilt)
        )
        if list(columns.items()) != list(computed.items()):
            raise NotComparableError("the columns of its answer changed")
        by = f"'{ALL_ROWS}'" if table.affects == "all" else SPARK.name(table.partition_by)
        rebuilt.createOrReplaceTempView(REBUILT)
        current.createOrReplaceTempView(CURRENT)
        try:
            counted = RowComparison(columns=columns, by=by, dialect=SPARK).count(lambda sql: spark.sql(sql).collect())
        finally:
            spark.catalog.dropTempView(REBUILT)
            spark.catalog.dropTempView(CURRENT)
    return {str(label): rows for label, rows in counted.items()}


def has_differences(results: Iterable[GoldVerificationResult]) -> bool:
    """Whether a comparison found differing rows."""
    return any(result.differing_rows for result in results)
