"""Plans and builds one gold table from pinned inputs, in one commit.

The target is the table itself or its shadow. The answer is committed by `gold.table_commit`.
"""

from __future__ import annotations

import datetime as dt
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from deltaworks.control.clock import utc_now
from deltaworks.control.job import as_deltaworks_error
from deltaworks.control.provenance import user_metadata
from deltaworks.errors import DeltaworksError
from deltaworks.gold.answer import compute_answer, failed_checks, grain_outside_date_error
from deltaworks.gold.input_views import InputViews, filter_part
from deltaworks.gold.pinned_inputs import BuiltFrom, PinnedInput, fingerprint, read_built_from
from deltaworks.gold.plan import (
    Answer,
    GoldPlan,
    as_declared,
    changes_by_row_diff,
    dated_plan,
    full_plan,
    plan_rebuild,
    with_dates,
)
from deltaworks.gold.table_commit import (
    SPARK,
    BuildCommit,
    Engine,
    file_effect_of,
    has_same_columns,
    overtaken_error,
    replace_part,
    write_answer,
)
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.descriptions import table_descriptions
from deltaworks.specs.gold import GoldTableSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.changed_hours import changed_hours
from deltaworks.tables.changes import Changes
from deltaworks.tables.commit import Step
from deltaworks.tables.descriptions import describe_table, is_described
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import TableState, parse_schema_string, state_at
from deltaworks.tables.rewrite import FileEffect
from deltaworks.tables.steps import gold_build_step


@dataclass(frozen=True, slots=True)
class GoldTableResult:
    """The result for one gold table.

    - `failed_checks`: the checks that the result of its SQL failed; it was not published then.
    - `checks_passed`: false after failed checks, also for tables that read this one.
    - `partitions`: the rebuilt dates or values; None for all.
    - `version`: the commit; None without one.
    - `spark_work_count`: 1 if a check without Spark found work for the table.
    - `engine`: what computed the answer: Spark, DuckDB in this process (`gold.small_build`), or partial sums
      (`gold.incremental`); None without one.
    - `spark_reason`: why Spark computed it, if builds of few rows were to do without.
    """

    table: str
    skipped: bool
    reason: str
    built_from: Mapping[str, int]
    partitions: tuple[str, ...] | None = ()
    rows: int = 0
    duplicates_dropped: int = 0
    version: int | None = None
    seconds: float = 0.0
    failed_checks: tuple[str, ...] = ()
    checks_passed: bool = True
    spark_work_count: int = 0
    engine: Engine | None = None
    spark_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJob:
    """A planned build of one gold table, with its inputs.

    The target table is `key`. If only requested dates are rebuilt, `previous_build` is set, and the commit keeps the
    recorded input versions. `late_rows` are those of `BuiltFrom` after the build. The transaction `step` commits once,
    and fails if another build has committed since planning. `is_described` says whether the table had its declared
    texts when the build was planned.
    """

    step: Step
    plan: GoldPlan
    key: str
    sql: str
    sql_path: Path
    fingerprint: str
    inputs: Mapping[str, PinnedInput]
    previous_build: BuiltFrom | None = None
    late_rows: Mapping[str, int] = field(default_factory=dict)
    is_described: bool = False

    @property
    def missing_late_rows(self) -> dict[str, int]:
        """The rows of frozen dates that the table lacks after the build, by date."""
        return {date: rows for date, rows in self.late_rows.items() if rows > 0}

    def as_full(self, reason: str) -> TableJob:
        """Returns the job as a build of all rows, which needs nothing of the previous build and lacks no late rows."""
        return replace(self, plan=full_plan(self.plan.table, reason), previous_build=None, late_rows={})

    @property
    def built_from(self) -> dict[str, int]:
        """The versions of the existing inputs."""
        return {name: pinned.version for name, pinned in self.inputs.items() if pinned.version is not None}

    def commit(self, spec: PipelineSpec, engine: Engine) -> BuildCommit:
        """Returns the commit of the build's answer, which `engine` has computed."""
        return BuildCommit.of(
            spec,
            key=self.key,
            plan=self.plan,
            step=self.step,
            built_from=self.built_from,
            recorded=self.previous_build or BuiltFrom(self.built_from, self.fingerprint),
            late_rows=self.late_rows,
            engine=engine,
        )


def plan_job(
    catalog: Catalog,
    spec: PipelineSpec,
    lake: Lake,
    table: GoldTableSpec,
    inputs: Mapping[str, PinnedInput],
    *,
    key: str,
    full: bool = False,
    dates: frozenset[dt.date] | None = None,
    read_changes: Callable[..., Changes] = changed_hours,
    opened: DeltaTable | None = None,
    now: dt.datetime | None = None,
) -> TableJob:
    """Plans the build of the table at `key`, from the versions it was last built from.

    Args:
        full: rebuild all rows.
        dates: rebuild exactly these dates.
        read_changes: a function like `changed_hours`; its results may be cached for several plans.
        now: the time from which `frozen_after` counts; by default the current one.
        opened: the table at `key`, if the plan is to refer to a version that was opened before the inputs were pinned.

    Raises:
        ConcurrencyError: GOLD_OVERTAKEN, with `full` or `dates`, if the table was built from newer inputs.
    """
    # Read the step first, so that this build fails if another build commits later.
    opened = opened or lake.open(key)
    step = _next_step(opened, spec, table)
    table_inputs = {name: inputs[name] for name in table.reads}
    path = catalog.folder(spec.pipeline) / table.sql
    sql = path.read_text(encoding="utf-8")
    digest = fingerprint(table, sql, spec.gold.dedupe, table_inputs)
    outcome = _Planned(_unbuilt_plan(table, table_inputs))
    if not outcome.plan.reason:
        built = read_built_from(lake, key, opened)
        changed = functools.partial(
            _plan, lake, spec, table, table_inputs, built=built, digest=digest, read_changes=read_changes, now=now
        )
        newer = _inputs_ahead(lake, built, table_inputs, digest)
        if newer and (full or dates is not None):
            raise overtaken_error(key)
        outcome = _plan_since(table, built, changed, newer=newer, full=full, dates=dates)
    return TableJob(
        step=step,
        plan=outcome.plan,
        key=key,
        sql=sql,
        sql_path=path,
        fingerprint=digest,
        inputs=table_inputs,
        previous_build=outcome.previous_build,
        late_rows=outcome.late_rows,
        is_described=opened is not None and is_described(opened, table_descriptions(spec)[table.name]),
    )


@dataclass(frozen=True, slots=True)
class _Planned:
    """A plan, with the previous build whose versions it retains, and the late rows that the table lacks after it."""

    plan: GoldPlan
    previous_build: BuiltFrom | None = None
    late_rows: Mapping[str, int] = field(default_factory=dict)


def _unbuilt_plan(table: GoldTableSpec, inputs: Mapping[str, PinnedInput]) -> GoldPlan:
    """Returns a plan without work, whose reason is the inputs that do not exist yet; empty if there are enough."""
    unbuilt = sorted(name for name, pinned in inputs.items() if pinned.version is None and not pinned.columns)
    reason = f"input {', '.join(unbuilt)} is not built yet" if unbuilt else ""
    if not unbuilt and all(pinned.version is None for pinned in inputs.values()):
        reason = "none of its inputs exists yet"
    return GoldPlan(table, frozenset(), frozenset(), reason)


def _plan_since(
    table: GoldTableSpec,
    built: BuiltFrom,
    changed: Callable[[], GoldPlan],
    *,
    newer: Sequence[str],
    full: bool,
    dates: frozenset[dt.date] | None,
) -> _Planned:
    """Plans what a table needs since it was built; see `plan_job`.

    Args:
        changed: plans all changes since the last build.
        newer: the inputs that another build has read at newer versions.
    """
    if newer:
        reason = f"another build has committed with newer versions of {', '.join(newer)}"
        return _Planned(GoldPlan(table, frozenset(), frozenset(), reason), late_rows=built.late_rows)
    if full:
        return _Planned(full_plan(table, "a full rebuild was requested"))
    if dates is not None:
        return _plan_requested(table, dates, built, changed)
    plan = changed()
    return _Planned(plan, late_rows=_late_rows(built, plan, plan))


def _plan_requested(
    table: GoldTableSpec, dates: frozenset[dt.date], built: BuiltFrom, changed: Callable[[], GoldPlan]
) -> _Planned:
    """Plans requested dates. The late rows that they read are remembered, since a later plan counts them again.

    Args:
        changed: plans all changes since the last build.
    """
    if not built.is_traceable:
        return _Planned(full_plan(table, built.reason))
    plan = dated_plan(table, dates)
    pending = GoldPlan(table, frozenset(), frozenset(), "") if table.frozen_after is None else changed()
    return _Planned(plan, previous_build=built, late_rows=_late_rows(built, plan, pending))


def _late_rows(built: BuiltFrom, plan: GoldPlan, pending: GoldPlan) -> dict[str, int]:
    """Returns the late rows that the table lacks after a plan, see `BuiltFrom`.

    Args:
        pending: the plan of all changes since the last build: `plan` itself, unless dates were requested.
    """
    if plan.full:
        return {}
    output = plan.output
    rows = {date: count for date, count in built.late_rows.items() if not output.contains(dt.date.fromisoformat(date))}
    for day, count in pending.late_rows:
        date = str(day)
        if not output.contains(day):
            if plan is pending:
                rows[date] = rows.get(date, 0) + count
        else:
            rows[date] = -count
    return {date: count for date, count in rows.items() if count}


def describe_gold(lake: Lake, spec: PipelineSpec, job: TableJob) -> None:
    """Stores the declared texts of a built table. Idempotent; a failure is logged."""
    # Spark's writer replaces the schema with all rows.
    if job.is_described and not job.plan.full:
        return
    table = lake.open(job.key)
    if table is not None:
        metadata = user_metadata(pipeline=spec.pipeline, batch="none", operation="describe_table")
        describe_table(lake, job.key, table, table_descriptions(spec)[job.plan.table.name], user_metadata=metadata)


def _next_step(opened: DeltaTable | None, spec: PipelineSpec, table: GoldTableSpec) -> Step:
    app_id = gold_build_step(spec.pipeline, table.name, 0).app_id
    last = None if opened is None else opened.transaction_version(app_id)
    return Step(app_id, (last or 0) + 1)


def _inputs_ahead(lake: Lake, built: BuiltFrom, inputs: Mapping[str, PinnedInput], digest: str) -> list[str]:
    """Returns the inputs that the table was built from at newer versions than pinned, by a concurrent build.

    Omits inputs whose current version is lower, because they have lost commits.
    """
    if not built.is_traceable or built.fingerprint != digest:
        return []
    ahead = []
    for name, pinned in inputs.items():
        version = built.versions.get(name)
        if pinned.version is None or version is None or version <= pinned.version:
            continue
        now = lake.open(pinned.key)
        if now is not None and now.version() >= version:
            ahead.append(name)
    return ahead


def _plan(
    lake: Lake,
    spec: PipelineSpec,
    table: GoldTableSpec,
    inputs: Mapping[str, PinnedInput],
    *,
    built: BuiltFrom,
    digest: str,
    read_changes: Callable[..., Changes],
    now: dt.datetime | None,
) -> GoldPlan:
    if not built.is_traceable:
        return full_plan(table, built.reason)
    if built.fingerprint != digest:
        return full_plan(table, "its definition changed, or an input was recreated")
    changes, columns = {}, {}
    arrived = {name: pinned.last_seq for name, pinned in inputs.items() if pinned.last_seq is not None}
    for name, pinned in inputs.items():
        if pinned.version is None:
            continue
        before = built.versions.get(name)
        columns[name] = pinned.date_column
        if pinned.diff_column and table.affects_for_input(name) == "onwards":
            columns[name] = pinned.diff_column
            changes[name] = changes_by_row_diff(
                lake, pinned.key, column=pinned.diff_column, before=before, after=pinned.version
            )
        else:
            times = "" if table.grain is None else pinned.time_column
            changes[name] = read_changes(
                lake, pinned.key, time_column=times, after_version=before, up_to_version=pinned.version
            )
    frozen_before = table.frozen_before(now or utc_now())
    plan = plan_rebuild(table, changes, spec.gold.dedupe, columns, arrived, frozen_before=frozen_before)
    late = {dt.date.fromisoformat(date) for date, rows in built.late_rows.items() if rows > 0}
    if thawed := frozenset(date for date in late if frozen_before is None or date >= frozen_before):
        plan = plan if plan.full else with_dates(plan, thawed, f"{len(thawed)} date(s) are no longer frozen")
    if plan.has_work and table.refresh == "full":
        return full_plan(table, f"{plan.reason}, and it declares refresh: full")
    return plan


def build_table(
    spark: SparkSession, lake: Lake, spec: PipelineSpec, job: TableJob, views: InputViews, *, run_checks: bool = True
) -> tuple[TableJob, GoldTableResult]:
    """Runs a planned build in one commit; commits nothing if a check fails.

    Returns the job with its result. The job is one of all rows if the columns of the answer have changed.

    Args:
        run_checks: whether to run the table's checks before the commit.

    Raises:
        ConcurrencyError: GOLD_OVERTAKEN, another build or a refresh has committed since planning.
        ConfigError: GOLD_GRAIN_OUTSIDE_DATE, or from `compute_answer` and `failed_checks`.
    """
    if not job.plan.has_work:
        return job, GoldTableResult(job.plan.table.name, True, job.plan.reason, job.built_from)
    started = time.monotonic()
    table = job.plan.table
    answer = _answer(spark, job, views)
    state = None if job.plan.full else state_at(lake, lake.objects, job.key)
    if state is not None and not has_same_columns(state, answer):
        job, state = job.as_full("the columns of its answer changed"), None
        answer = _answer(spark, job, views)
    run_checks = run_checks and table.checks.has_result_checks
    if run_checks:
        # Cache the result, since the checks and the write read it.
        answer = answer.persist()
    try:
        failures = _failed_checks(spark, lake, job, answer, state) if run_checks else []
        if failures:
            return job, unpublished(job, failures, seconds=time.monotonic() - started)
        version, rows = write_answer(answer, lake, job.commit(spec, SPARK), state, spec=spec, views=views)
    except Exception as error:
        if (specific := _known_error(job, error)) is not None:
            raise specific from error
        raise
    finally:
        if run_checks:
            answer.unpersist()
    return job, GoldTableResult(
        table=table.name,
        skipped=False,
        reason=job.plan.reason,
        built_from=job.built_from,
        partitions=job.plan.output.labels,
        rows=rows,
        duplicates_dropped=sum(views.count_duplicates([name], job.plan.input_of(name)) for name in table.reads),
        version=version,
        seconds=time.monotonic() - started,
        engine=SPARK,
    )


def unpublished(job: TableJob, failures: Sequence[str], *, seconds: float) -> GoldTableResult:
    """Returns the result of a table whose answer fails its checks."""
    return GoldTableResult(
        job.plan.table.name,
        True,
        f"not published: {'; '.join(failures)}",
        job.built_from,
        seconds=seconds,
        failed_checks=tuple(failures),
        checks_passed=False,
    )


def commit_answer(
    lake: Lake, spec: PipelineSpec, job: TableJob, answer: Answer, *, engine: Engine
) -> GoldTableResult | None:
    """Commits an answer that was computed without Spark, in one commit like `build_table`. Runs no checks.

    Returns None if it is too large for one process, or its columns differ; Spark builds the table then.

    Raises:
        ConcurrencyError: GOLD_OVERTAKEN, another build or a refresh has committed since planning.
    """
    started = time.monotonic()
    state = state_at(lake, lake.objects, job.key)
    try:
        rows = as_declared(answer.rows, parse_schema_string(state.metadata["schemaString"]))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    committed = replace_part(rows, lake, job.commit(spec, engine), state)
    if committed is None:
        return None
    version, count = committed
    return GoldTableResult(
        table=job.plan.table.name,
        skipped=False,
        reason=job.plan.reason,
        built_from=job.built_from,
        partitions=job.plan.output.labels,
        rows=count,
        duplicates_dropped=answer.duplicates,
        version=version,
        seconds=time.monotonic() - started,
        engine=engine,
    )


def _known_error(job: TableJob, error: Exception) -> DeltaworksError | None:
    """Returns the error for rows outside their date, or for a commit of another build that Spark's writer noticed."""
    if as_deltaworks_error(error).condition == "DELTA_CONFLICT":
        return overtaken_error(job.key)
    return grain_outside_date_error(job.plan.table, job.sql_path, error)


def _answer(spark: SparkSession, job: TableJob, views: InputViews) -> DataFrame:
    return compute_answer(spark, job.plan, views, sql=job.sql, sql_path=job.sql_path)


def published_rows(spark: SparkSession, lake: Lake, key: str, plan: GoldPlan) -> DataFrame | None:
    """Returns the current rows of the part to be written; None if the table does not exist."""
    if lake.open(key) is None:
        return None
    rows = spark.read.format("delta").load(lake.storage.spark_uri(key))
    if plan.table.partition_by not in rows.columns:
        return None
    grain = plan.table.grain
    if grain is not None and grain.column not in rows.columns:
        return None
    return filter_part(rows, plan.output, plan.table.partition_by, "" if grain is None else grain.column)


def _failed_checks(
    spark: SparkSession, lake: Lake, job: TableJob, answer: DataFrame, state: TableState | None
) -> list[str]:
    """Returns the failed checks. Requested dates without events stay empty, and need no row for `min_rows`."""
    table, published = job.plan.table, _rows_for_drop_check(spark, lake, job)
    return failed_checks(table, answer, published, allow_empty=may_be_empty(job, state))


def may_be_empty(job: TableJob, state: TableState | None) -> bool:
    """Whether no row is right for requested dates: the table, at `state`, has none for them either."""
    if job.previous_build is None or state is None:
        return False
    effect_of = file_effect_of(job.plan.output, job.plan.table)
    return all(effect_of(file) is FileEffect.UNCHANGED for file in state.files.values())


def _rows_for_drop_check(spark: SparkSession, lake: Lake, job: TableJob) -> DataFrame | None:
    """Returns the published rows if `max_drop` is declared; reading them costs a log read."""
    return None if job.plan.table.checks.max_drop is None else published_rows(spark, lake, job.key, job.plan)
