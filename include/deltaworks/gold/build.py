"""Rebuilds gold tables incrementally: only partitions that are affected by changes of their inputs.

Each table is written in one commit that records the input versions, so a failed job can simply run again. Appends to
the inputs may continue, because a build reads pinned versions. After a build, alerts are raised for models whose newest
scores reach the threshold.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, Self

import pyarrow.compute as pc
from pyspark.sql import SparkSession

from deltaworks.alerts.raising import raise_alert, resolve_alert
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.job import as_deltaworks_error, error_of_table
from deltaworks.errors import (
    ConcurrencyError,
    ContractError,
    DeltaworksError,
    FencedError,
    TransientError,
    combined_error,
)
from deltaworks.gold.answer import raise_failed_checks
from deltaworks.gold.input_views import InputViews
from deltaworks.gold.model_tables import refresh_external_inputs
from deltaworks.gold.pinned_inputs import PinnedInput, pin_inputs, record_failed, record_refreshed
from deltaworks.gold.plan import Answer, select_gold_tables
from deltaworks.gold.small_build import SmallBuilds
from deltaworks.gold.table_build import GoldTableResult, TableJob, build_table, commit_answer, describe_gold, plan_job
from deltaworks.gold.table_commit import PARTIAL_SUMS
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.gold import DedupeSpec, GoldTableSpec
from deltaworks.specs.models import ModelSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.changed_hours import changed_hours
from deltaworks.tables.lake import Lake
from deltaworks.tables.rewrite import SparkRequiredError

if TYPE_CHECKING:
    from deltaworks.gold.incremental import IncrementalGold

SessionFactory = Callable[[], SparkSession]
CAUSE = "FAILURE_PREDICTED"
_MAX_NAMED_ROWS = 10
_EXPECTATIONS = {"begins": "to begin", "absent": "to stay away"}


def update_prediction_alerts(
    catalog: Catalog, pipeline: str, *, tables: Collection[str], now: dt.datetime | None = None
) -> None:
    """Raises or resolves the alert of each model from the newest rows of these gold tables.

    A score is valid for the model's horizon. Idempotent. The severity is always warning.
    """
    spec = catalog.pipeline(pipeline)
    for model in spec.models:
        if model.warnings in tables:
            _update_alert(catalog, spec, model, now or utc_now())


def _update_alert(catalog: Catalog, spec: PipelineSpec, model: ModelSpec, now: dt.datetime) -> None:
    objects = PipelineHome.open(catalog.environment.lake, spec.pipeline).objects
    subject = f"{spec.pipeline}.{model.name}"
    rows = _rows_above_threshold(Lake(catalog.environment.lake), spec, model, now)
    if not rows:
        resolve_alert(objects, cause=CAUSE, subject=subject, summary=f"{subject} no longer predicts anything.", now=now)
        return
    names = [f"{'/'.join(str(row[name]) for name in model.entity)} {row['score']:.2f}" for row in rows]
    more = f" and {len(names) - _MAX_NAMED_ROWS} more" if len(names) > _MAX_NAMED_ROWS else ""
    raise_alert(
        objects,
        cause=CAUSE,
        subject=subject,
        summary=(
            f"{rows[0]['model']} expects the state in {model.label} {_EXPECTATIONS[model.predicts]} within "
            f"{_describe_horizon(model)} for {', '.join(names[:_MAX_NAMED_ROWS])}{more}."
        ),
        severity="warning",
        detail={
            "model": rows[0]["model"],
            "threshold": rows[0]["threshold"],
            "rows": [
                {name: str(row[name]) for name in (*model.entity, model.timestamp, "score")}
                for row in rows[:_MAX_NAMED_ROWS]
            ],
        },
        now=now,
    )


def _rows_above_threshold(lake: Lake, spec: PipelineSpec, model: ModelSpec, now: dt.datetime) -> list[dict[str, Any]]:
    """Returns the newest row of each entity within the horizon whose score reaches the threshold, highest score
    first."""
    declared = {table.name: table for table in spec.gold.tables}[str(model.warnings)]
    horizon = dt.timedelta(seconds=model.horizon_seconds)
    columns = [*model.entity, model.timestamp, "model", "score", "threshold"]
    since = (now - horizon).date() - dt.timedelta(days=1)
    filters = pc.field(declared.partition_by) >= since if declared.is_partitioned_by_date else None
    table = lake.rows(paths.table(spec.pipeline, declared.name), columns=columns, filters=filters)
    newest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in [] if table is None else table.to_pylist():
        at = _row_instant(row[model.timestamp])
        if at is None or not now - horizon < at <= now:
            continue
        entity = tuple(row[name] for name in model.entity)
        if entity not in newest or at > newest[entity]["_at"]:
            newest[entity] = {**row, "_at": at}
    rows = [row for row in newest.values() if row["score"] is not None and row["score"] >= row["threshold"]]
    return sorted(rows, key=lambda row: -row["score"])


def _row_instant(value: Any) -> dt.datetime | None:
    """Returns the timestamp of a row; for a date, its end."""
    if isinstance(value, dt.datetime):
        return value if value.tzinfo else value.replace(tzinfo=dt.UTC)
    if isinstance(value, dt.date):
        return dt.datetime.combine(value + dt.timedelta(days=1), dt.time(), dt.UTC)
    return None


def _describe_horizon(model: ModelSpec) -> str:
    return f"{model.horizon_minutes} minutes" if model.horizon_minutes is not None else f"{model.horizon_days} days"


log = logging.getLogger(__name__)
#: Values of `refresh` with which every build uses partial sums, not the stream's alone.
_FROM_NEW_ROWS = ("incremental", "strict")
#: Maximum number of times that a requested build plans again after another build committed first.
_MAX_REPLANS = 3
_OVERTAKEN_REASON = "another build of the table committed first; the next build continues from it"


@dataclass(frozen=True, slots=True)
class GoldBuildResult:
    """Results of a pipeline's gold tables, in build order."""

    pipeline: str
    tables: tuple[GoldTableResult, ...]
    seconds: float

    def table(self, name: str) -> GoldTableResult:
        """Returns the result of one table.

        Raises:
            KeyError: the table was not selected.
        """
        return {result.table: result for result in self.tables}[name]


def log_failure(pipeline: str, table: str, failure: DeltaworksError, error: Exception) -> None:
    """Logs the error of a table; with its traceback if its condition does not explain it."""
    trace = error if failure.condition == "JOB_FAILED" else None
    log.warning("pipeline=%s table=%s failed: %s", pipeline, table, failure, exc_info=trace)


class BuildListener(Protocol):
    """Callbacks for the outcome of each table of a build. With a listener, a failing table does not stop the others."""

    def skip_reason(self, job: TableJob) -> str:
        """Returns why a table must not be built now; empty to build it."""
        ...

    def on_built(self, job: TableJob, result: GoldTableResult) -> None:
        """Called when a table was built or is up to date."""
        ...

    def on_failed(self, table: GoldTableSpec, error: Exception) -> None:
        """Called when a table could not be built."""
        ...


def rebuild_gold(
    spark: SparkSession | SessionFactory,
    catalog: Catalog,
    pipeline: str,
    *,
    tables: Sequence[str] | None = None,
    full: bool = False,
    dates: frozenset[dt.date] | None = None,
    listener: BuildListener | None = None,
    incremental: IncrementalGold | None = None,
) -> GoldBuildResult:
    """Rebuilds gold tables from the current versions of their inputs, after refreshing the reference tables they read.

    Idempotent and safe during appends to the inputs. Of two concurrent builds of one table, one commits and the other
    fails; a table that the stream keeps fresh is skipped instead.

    Args:
        spark: an open session, which computes all answers but those of `incremental`; or a function that opens one. It
            is called only if a table is left to Spark: single dates of few rows are built in this process.
        tables: names of gold tables; by default all of the pipeline.
        full: rebuild all rows.
        dates: rebuild exactly these dates. Other changes are left to the next build without dates.
        listener: receives the outcome of each table; errors of a single table are then not raised.
        incremental: holds partial results from build to build; Spark computes the other answers.

    Tables are built in dependency order. A table that fails, or fails its checks, is not published, nor are tables that
    read it; the others are. Errors of tables are raised after all were tried.

    Raises:
        ConfigError: GOLD_TABLE_UNKNOWN, GOLD_SQL_INVALID, GOLD_COLUMN_MISSING, GOLD_PARTITION_NOT_DATE,
            GOLD_PARTITION_NOT_TEXT, GOLD_GRAIN_NOT_TIME, GOLD_GRAIN_OUTSIDE_DATE or GOLD_CHECK_INVALID.
        ContractError: GOLD_CHECK_FAILED, GOLD_NOT_INCREMENTAL, DATA_FILE_MISSING, DATA_FILE_UNREADABLE;
            REFERENCE_UNREADABLE or REFERENCE_INVALID.
        DeltaworksError: GOLD_TABLES_FAILED, which lists several failed tables.
        ConcurrencyError: GOLD_OVERTAKEN, REFERENCE_CONTENDED, or a Delta conflict.
    """
    started = time.monotonic()
    spec = catalog.pipeline(pipeline)
    selection = select_gold_tables(spec, tables)
    refresh_external_inputs(catalog, pipeline, names=[name for table in selection for name in table.reads])
    run = _BuildRun(spark, catalog, spec, selection, full=full, dates=dates, listener=listener, incremental=incremental)
    results = run.build_tables()
    if listener is None:
        raise_failures(
            pipeline,
            {name: list(result.failed_checks) for name, result in results.items() if result.failed_checks},
            list(run.errors.values()),
            tables=len(selection),
        )
    return GoldBuildResult(pipeline, tuple(results.values()), time.monotonic() - started)


def raise_failures(
    pipeline: str, failed_checks: dict[str, list[str]], errors: Sequence[DeltaworksError], *, tables: int
) -> None:
    """Raises if tables failed: the error of a single one, otherwise one that lists all.

    Args:
        tables: the number of selected tables.

    Raises:
        DeltaworksError: of a table; GOLD_CHECK_FAILED; or GOLD_TABLES_FAILED.
    """
    if not errors:
        raise_failed_checks(pipeline, failed_checks)
        return
    if not failed_checks:
        raise combined_error("GOLD_TABLES_FAILED", errors, tables=tables)
    try:
        raise_failed_checks(pipeline, failed_checks)
    except ContractError as checks:
        raise combined_error("GOLD_TABLES_FAILED", [*errors, checks], tables=tables) from checks


class _LazyViews:
    """Views of the inputs in a Spark session. Neither exists until the first table is left to Spark."""

    def __init__(self, spark: SparkSession | SessionFactory, lake: Lake, dedupe: DedupeSpec | None) -> None:
        self._spark, self._lake, self._dedupe = spark, lake, dedupe
        self._inputs: dict[str, PinnedInput] = {}
        self._opened: tuple[SparkSession, InputViews] | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def add_inputs(self, inputs: Mapping[str, PinnedInput]) -> None:
        """Adds inputs, such as gold tables that this run has built."""
        self._inputs.update(inputs)
        if self._opened is not None:
            self._opened[1].add_inputs(inputs)

    def open(self) -> tuple[SparkSession, InputViews]:
        """Returns the session and the views of all inputs; opens the session at the first call."""
        if self._opened is None:
            session = self._spark() if callable(self._spark) else self._spark
            views = InputViews(session, self._lake, self._inputs, self._dedupe)
            self._opened = session, self._stack.enter_context(views)
        return self._opened


class _BuildRun:
    """Builds several tables from the same pinned inputs. Duplicate events are found once for all of them."""

    def __init__(
        self,
        spark: SparkSession | SessionFactory,
        catalog: Catalog,
        spec: PipelineSpec,
        selection: Sequence[GoldTableSpec],
        *,
        full: bool,
        dates: frozenset[dt.date] | None,
        listener: BuildListener | None,
        incremental: IncrementalGold | None,
    ) -> None:
        self._catalog, self._spec, self._selection = catalog, spec, selection
        self._full, self._dates, self._listener = full, dates, listener
        self._lake = Lake(catalog.environment.lake)
        self._views = _LazyViews(spark, self._lake, spec.gold.dedupe)
        self._small = SmallBuilds(self._lake, spec) if callable(spark) else None
        self._home = PipelineHome.open(catalog.environment.lake, spec.pipeline)
        if incremental is None and any(table.refresh in _FROM_NEW_ROWS for table in selection):
            from deltaworks.gold.incremental import IncrementalGold

            incremental = IncrementalGold(self._lake, spec)
        self._incremental = incremental
        self._gold = {table.name for table in spec.gold.tables}
        self._results: dict[str, GoldTableResult] = {}
        #: Errors of tables, by name.
        self.errors: dict[str, DeltaworksError] = {}
        # Tables refreshed together were mostly built from the same versions, so their changes are read once.
        self._read_changes = cache(changed_hours)

    def build_tables(self) -> dict[str, GoldTableResult]:
        """Builds the tables in order and returns their results. Skipped and failed tables have no result."""
        reads = {name for table in self._selection for name in table.reads}
        inputs = self._pin_shared_inputs(sorted(reads - self._gold))
        jobs: dict[str, TableJob | None] = {
            table.name: self._plan_table(table, inputs) for table in self._selection if not self._gold & {*table.reads}
        }
        with self._views as views:
            views.add_inputs(inputs)
            work = [job for job in jobs.values() if job is not None and job.plan.has_work]
            merged = {} if self._incremental is None else self._incremental.answers(work)
            others = [job for job in work if job.plan.table.name not in merged]
            left_to_spark = [job for job in others if self._small is None or self._small.reason_for_spark(job)]
            if left_to_spark:
                views.open()[1].prepare([(job.plan, job.sql) for job in left_to_spark])
            for table in self._selection:
                if (held_back := _blocked_result(table, self._results, self.errors)) is not None:
                    self._results[table.name] = held_back
                    continue
                if table.name not in jobs:
                    jobs[table.name] = self._plan_reader_of_gold(table, inputs)
                if (job := jobs[table.name]) is not None:
                    self._build_table(job, merged.get(table.name))
        return self._results

    def _pin_shared_inputs(self, names: Sequence[str]) -> dict[str, PinnedInput]:
        """Pins inputs at one version for all tables. Tables that read one that cannot be pinned fail."""
        pinned: dict[str, PinnedInput] = {}
        for name in names:
            try:
                pinned |= pin_inputs(self._lake, self._spec, [name])
            except Exception as error:
                for table in self._selection:
                    if name in table.reads:
                        self._fail(table, error)
        return pinned

    def _plan_reader_of_gold(self, table: GoldTableSpec, inputs: Mapping[str, PinnedInput]) -> TableJob | None:
        """Plans a table that reads gold tables, which are pinned only now, after this run has built them."""
        try:
            gold = pin_inputs(self._lake, self._spec, [name for name in table.reads if name in self._gold])
        except Exception as error:
            self._fail(table, error)
            return None
        self._views.add_inputs({**inputs, **gold})
        return self._plan_table(table, {**inputs, **gold})

    def _fail(self, table: GoldTableSpec, error: Exception) -> None:
        """Records the error of a table, and continues with the others.

        Raises:
            TransientError, FencedError: without a listener, since no other table can be built either.
        """
        if table.name in self.errors:
            return
        failure = self.errors[table.name] = error_of_table(error, table.name)
        self._record_failure(table, failure)
        if self._listener is not None:
            self._listener.on_failed(table, failure)
            return
        if isinstance(failure, TransientError | FencedError):
            raise failure from error
        log_failure(self._spec.pipeline, table.name, failure, error)

    def _plan_table(self, table: GoldTableSpec, pinned: Mapping[str, PinnedInput]) -> TableJob | None:
        """Plans the build of a table; None if the listener skips it, or it has failed."""
        if table.name in self.errors:
            return None
        key = paths.table(self._spec.pipeline, table.name)
        try:
            job = plan_job(
                self._catalog,
                self._spec,
                self._lake,
                table,
                pinned,
                key=key,
                full=self._full,
                dates=self._dates,
                read_changes=self._read_changes,
            )
        except Exception as error:
            self._fail(table, error)
            return None
        if self._listener is not None and (reason := self._listener.skip_reason(job)):
            log.warning("pipeline=%s table=%s is not built: %s", self._spec.pipeline, table.name, reason)
            return None
        return job

    def _build_table(self, job: TableJob, merged: Answer | None) -> None:
        name = job.plan.table.name
        try:
            job, result = self._build_or_skip(job, merged)
            for _ in range(_MAX_REPLANS):
                if result.reason != _OVERTAKEN_REASON or self._listener is not None:
                    break
                # The other build may have read older inputs. Plan again, so that the table contains at least the pinned
                # versions.
                job = self._plan_table(job.plan.table, job.inputs) or job
                job, result = self._build_or_skip(job)
            if result.failed_checks and self._listener is not None:
                self._results[name] = result
                raise_failed_checks(self._spec.pipeline, {name: list(result.failed_checks)})
            if result.checks_passed:
                update_prediction_alerts(self._catalog, self._spec.pipeline, tables=[name])
        except Exception as error:
            self._fail(job.plan.table, error)
            return
        self._results[name] = result
        describe_gold(self._lake, self._spec, job)
        if result.failed_checks:
            failed = ", ".join(str(check) for check in result.failed_checks)
            self._record_failure(job.plan.table, ContractError("GOLD_CHECK_FAILED", f"It fails its checks: {failed}."))
        is_current = self._dates is None or job.plan.full
        if is_current and result.checks_passed and job.built_from and result.reason != _OVERTAKEN_REASON:
            record_refreshed(self._home, name, late_rows=job.missing_late_rows)
        if self._listener is not None:
            self._listener.on_built(job, result)

    def _build_or_skip(self, job: TableJob, merged: Answer | None = None) -> tuple[TableJob, GoldTableResult]:
        """Builds a table; returns the job and its result like `build_table`.

        If another build committed first, a table that the stream refreshes is reported as skipped; if the build was
        requested explicitly, the conflict is raised instead.
        """
        try:
            return self._build(job, merged)
        except Exception as error:
            deltaworks_error, table = as_deltaworks_error(error), job.plan.table
            has_other_builder = table in self._spec.gold.stream_refreshed_tables
            is_requested = self._full or self._dates is not None
            if is_requested or not has_other_builder or not isinstance(deltaworks_error, ConcurrencyError):
                raise
            log.warning(
                "pipeline=%s table=%s was built by another builder: %s",
                self._spec.pipeline,
                table.name,
                deltaworks_error,
            )
            return job, GoldTableResult(table.name, True, _OVERTAKEN_REASON, job.built_from)

    def _build(self, job: TableJob, merged: Answer | None) -> tuple[TableJob, GoldTableResult]:
        """Builds a table from partial sums, or else in this process, or else by Spark."""
        committed, reason = None, ""
        if merged is not None:
            committed = commit_answer(self._lake, self._spec, job, merged, engine=PARTIAL_SUMS)
        if committed is None and not job.plan.has_work:
            return job, GoldTableResult(job.plan.table.name, True, job.plan.reason, job.built_from)
        if committed is None:
            _require_new_rows_alone(job)
        if committed is None and self._small is not None:
            try:
                committed = self._small.build(job)
            except SparkRequiredError as error:
                reason = str(error)
        if committed is not None:
            return job, committed
        spark, views = self._views.open()
        job, result = build_table(spark, self._lake, self._spec, job, views)
        return job, replace(result, spark_reason=reason)

    def _record_failure(self, table: GoldTableSpec, error: DeltaworksError) -> None:
        """Records a failure for the page of gold. A build that another one overtook has not failed."""
        if isinstance(error, ConcurrencyError):
            return
        try:
            record_failed(self._home, table.name, error)
        except DeltaworksError as problem:
            log.warning("pipeline=%s the failure of %s is not recorded: %s", self._spec.pipeline, table.name, problem)


def _require_new_rows_alone(job: TableJob) -> None:
    """Raises if a table whose answer was not computed from new rows declares that they must do."""
    table = job.plan.table
    if table.refresh == "strict" and not job.plan.full:
        raise ContractError(
            "GOLD_NOT_INCREMENTAL",
            f"{table.name} declares refresh: strict, but its changed dates cannot be computed from new rows.",
            hint=f"See why with `deltaworks gold explain {table.name}`, or declare refresh: incremental.",
        )


def _blocked_result(
    table: GoldTableSpec, results: Mapping[str, GoldTableResult], errors: Mapping[str, DeltaworksError]
) -> GoldTableResult | None:
    """Returns the result of a table whose inputs failed, or failed their checks; None if it can be built."""
    failed_inputs = sorted(name for name in table.reads if name in errors)
    reason = f"input {', '.join(failed_inputs)} failed"
    if not failed_inputs:
        failed_inputs = sorted(name for name in table.reads if name in results and not results[name].checks_passed)
        reason = f"input {', '.join(failed_inputs)} failed its checks"
    return GoldTableResult(table.name, True, reason, {}, checks_passed=False) if failed_inputs else None
