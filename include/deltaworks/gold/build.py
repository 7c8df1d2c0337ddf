"""Rebuilds gold tables: only the parts their inputs changed, and nothing where nothing changed.

Each table is written in one commit that names the versions it was built from, so a job that dies is simply run
again. Appends to the inputs go on meanwhile: a build reads the versions it has pinned.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ConfigError
from deltaworks.gold.answer import answer_of, same_columns
from deltaworks.gold.built_from import BUILT_FROM, FINGERPRINT, BuiltFrom, fingerprint, read_built_from
from deltaworks.gold.checks import broken_checks, refuse_broken
from deltaworks.gold.freshness import note_fresh
from deltaworks.gold.inputs import InputViews, PinnedInput, pin_inputs
from deltaworks.gold.plan import GoldPlan, dated_plan, full_plan, plan_rebuild
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.gold import GoldTableSpec, build_order
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.changes import changed_partitions
from deltaworks.tables.commit import TABLE_PROPERTIES
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history
from deltaworks.tables.partitions import literal

OPERATION = "rebuild_gold"


@dataclass(frozen=True, slots=True)
class GoldTableResult:
    """What became of one gold table. `broken` are the checks its answer breaks, for which it was not published; `sound`
    is false for it and for those that read it.

    `partitions` are the dates or other values rebuilt, None for the whole table; `version` is the commit, None where
    there was none.
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
    broken: tuple[str, ...] = ()
    sound: bool = True


@dataclass(frozen=True, slots=True)
class GoldResult:
    """What became of a pipeline's gold tables, in the order they were built: each after those it reads."""

    pipeline: str
    tables: tuple[GoldTableResult, ...]
    seconds: float

    def table(self, name: str) -> GoldTableResult:
        """The result of one table.

        Raises:
            KeyError: it was not among those asked for.
        """
        return {result.table: result for result in self.tables}[name]


@dataclass(frozen=True, slots=True)
class _Job:
    """One gold table with all that its build needs. `stays` is what it remains built from, where only dates asked for
    are made anew: the others are as old as before."""

    plan: GoldPlan
    sql: str
    sql_path: Path
    fingerprint: str
    inputs: Mapping[str, PinnedInput]
    stays: BuiltFrom | None = None

    @property
    def built_from(self) -> dict[str, int]:
        """Versions of the inputs that are read."""
        return {name: pinned.version for name, pinned in self.inputs.items() if pinned.version is not None}


def rebuild_gold(
    spark: SparkSession,
    catalog: Catalog,
    pipeline: str,
    *,
    tables: Sequence[str] | None = None,
    full: bool = False,
    dates: frozenset[dt.date] | None = None,
) -> GoldResult:
    """Bring gold tables up to date with their inputs as they are now.

    Idempotent; safe beside appends to the inputs. Two builds of one table at once end with one of them failing.

    Args:
        tables: names of gold tables; by default all of the pipeline.
        full: rebuild whole tables, whatever changed.
        dates: rebuild these dates of the gold tables, whatever changed, and no others. What changed elsewhere is left
            to the next build without dates, which sees it as before.

    A table is built after those it reads. One whose answer breaks its checks is not published, nor are those that read
    it; the others are.

    Raises:
        ConfigError: GOLD_TABLE_UNKNOWN, GOLD_SQL_INVALID, GOLD_COLUMN_MISSING, GOLD_PARTITION_NOT_DATE,
            GOLD_PARTITION_NOT_TEXT or GOLD_CHECK_INVALID.
        ContractError: GOLD_CHECK_FAILED, after all tables were tried.
    """
    started = time.monotonic()
    spec = catalog.pipeline(pipeline)
    lake = Lake(catalog.environment.lake)
    wanted = _selected(spec, tables)
    gold = {table.name for table in spec.gold.tables}
    inputs = pin_inputs(lake, spec, sorted({name for table in wanted for name in table.reads} - gold))
    jobs = {
        table.name: _job(catalog, spec, lake, table, inputs, full=full, dates=dates)
        for table in wanted
        if not gold & {*table.reads}
    }
    results: dict[str, GoldTableResult] = {}
    with InputViews(spark, lake, inputs, spec.gold.dedupe) as views:
        views.prepare([job.plan for job in jobs.values() if job.plan.has_work])
        for table in wanted:
            held = sorted(name for name in table.reads if name in results and not results[name].sound)
            if held:
                reason = f"{', '.join(held)}, which it reads, broke its checks"
                results[table.name] = GoldTableResult(table.name, True, reason, {}, sound=False)
                continue
            job = jobs.get(table.name)
            if job is None:
                # Gold tables it reads are taken as this very build has left them.
                own = inputs | pin_inputs(lake, spec, [name for name in table.reads if name in gold])
                views.add(own)
                job = _job(catalog, spec, lake, table, own, full=full, dates=dates)
            results[table.name] = _result(spark, lake, spec, job, views)
            if dates is None and results[table.name].sound and job.built_from:
                note_fresh(open_objects(catalog.environment.lake), pipeline, table.name)
    refuse_broken(pipeline, {name: list(result.broken) for name, result in results.items() if result.broken})
    return GoldResult(pipeline, tuple(results.values()), time.monotonic() - started)


def _result(spark: SparkSession, lake: Lake, spec: PipelineSpec, job: _Job, views: InputViews) -> GoldTableResult:
    if job.plan.has_work:
        return _build(spark, lake, spec, job, views)
    return GoldTableResult(job.plan.table.name, True, job.plan.reason, job.built_from)


def _selected(spec: PipelineSpec, tables: Sequence[str] | None) -> list[GoldTableSpec]:
    known = {table.name: table for table in spec.gold.tables}
    unknown = sorted(set(tables or ()) - set(known))
    if unknown:
        raise ConfigError(
            "GOLD_TABLE_UNKNOWN",
            f"Pipeline {spec.pipeline!r} has no gold table {', '.join(unknown)}.",
            hint=f"Its gold tables are {', '.join(known) or 'none'}.",
        )
    return [table for table in build_order(spec.gold.tables) if not tables or table.name in tables]


def _job(
    catalog: Catalog,
    spec: PipelineSpec,
    lake: Lake,
    table: GoldTableSpec,
    inputs: Mapping[str, PinnedInput],
    *,
    full: bool,
    dates: frozenset[dt.date] | None,
) -> _Job:
    own = {name: inputs[name] for name in table.reads}
    path = catalog.folder(spec.pipeline) / table.sql
    sql = path.read_text(encoding="utf-8")
    digest = fingerprint(table, sql, spec.gold.dedupe, own)
    stays = None
    unbuilt = sorted(name for name, pinned in own.items() if pinned.version is None and not pinned.columns)
    if unbuilt or all(pinned.version is None for pinned in own.values()):
        reason = f"{', '.join(unbuilt)} is not built yet" if unbuilt else "none of its inputs exists yet"
        plan = GoldPlan(table, frozenset(), frozenset(), reason)
    elif full:
        plan = full_plan(table, "a full rebuild was asked for")
    elif dates is not None:
        built = read_built_from(lake, paths.table(spec.pipeline, table.name))
        plan = dated_plan(table, dates) if built.known else full_plan(table, built.reason)
        stays = built if built.known else None
    else:
        plan = _plan(lake, spec, table, own, digest)
    return _Job(plan, sql, path, digest, own, stays)


def _plan(
    lake: Lake, spec: PipelineSpec, table: GoldTableSpec, inputs: Mapping[str, PinnedInput], digest: str
) -> GoldPlan:
    built = read_built_from(lake, paths.table(spec.pipeline, table.name))
    if not built.known:
        return full_plan(table, built.reason)
    if built.fingerprint != digest:
        return full_plan(table, "its definition changed, or an input was created anew")
    changes = {
        name: changed_partitions(lake, pinned.key, after_version=built.versions.get(name), up_to_version=pinned.version)
        for name, pinned in inputs.items()
        if pinned.version is not None
    }
    columns = {name: pinned.date_column for name, pinned in inputs.items()}
    return plan_rebuild(table, changes, spec.gold.dedupe, columns)


def _build(spark: SparkSession, lake: Lake, spec: PipelineSpec, job: _Job, views: InputViews) -> GoldTableResult:
    started = time.monotonic()
    table, key = job.plan.table, paths.table(spec.pipeline, job.plan.table.name)
    answer = _answer(spark, job, views)
    if not job.plan.full and not same_columns(spark, lake.storage.spark_uri(key), answer):
        job = replace(job, plan=full_plan(table, "the columns of its answer changed"), stays=None)
        answer = _answer(spark, job, views)
    batch = ",".join(f"{name}@{version}" for name, version in job.built_from.items())
    checked = table.checks.before_commit
    if checked:
        # Looked at several times and then written: computed once.
        answer = answer.persist()
    try:
        broken = broken_checks(table, answer, _before(spark, lake, key, job.plan)) if checked else []
        if broken:
            seconds = time.monotonic() - started
            reason = f"not published: {'; '.join(broken)}"
            return GoldTableResult(
                table.name, True, reason, job.built_from, seconds=seconds, broken=tuple(broken), sound=False
            )
        _write(answer, lake.storage.spark_uri(key), job, spec=spec, batch=batch)
    finally:
        if checked:
            answer.unpersist()
    version, rows = _committed(lake, key, batch)
    written = job.plan.output.values
    return GoldTableResult(
        table=table.name,
        skipped=False,
        reason=job.plan.reason,
        built_from=job.built_from,
        partitions=None if written is None else tuple(str(value) for value in sorted(written)),
        rows=rows,
        duplicates_dropped=views.copies_dropped(table.reads, job.plan.input),
        version=version,
        seconds=time.monotonic() - started,
    )


def _answer(spark: SparkSession, job: _Job, views: InputViews) -> DataFrame:
    return answer_of(spark, job.plan, views, sql=job.sql, sql_path=job.sql_path)


def _before(spark: SparkSession, lake: Lake, key: str, plan: GoldPlan) -> DataFrame | None:
    """The rows that readers have now of what is to be written; None where the table is not there yet."""
    if lake.open(key) is None:
        return None
    rows = spark.read.format("delta").load(lake.storage.spark_uri(key))
    if plan.table.partition_by not in rows.columns:
        return None
    written = plan.output.values
    return rows if written is None else rows.filter(F.col(plan.table.partition_by).isin(sorted(written)))


def _write(answer: DataFrame, uri: str, job: _Job, *, spec: PipelineSpec, batch: str) -> None:
    column = job.plan.table.partition_by
    stays = job.stays or BuiltFrom(job.built_from, job.fingerprint)
    said = {BUILT_FROM: dict(stays.versions), FINGERPRINT: stays.fingerprint}
    metadata = user_metadata(pipeline=spec.pipeline, batch=batch, operation=OPERATION, **said)
    # Rebalanced, a small date becomes one file and a large one is still split.
    writer = answer.hint("rebalance", column).write.format("delta").mode("overwrite").partitionBy(column)
    writer = writer.option("userMetadata", metadata)
    written = job.plan.output.values
    if written is None:
        writer = writer.option("overwriteSchema", "true")
        writer = writer.options(**{**TABLE_PROPERTIES, **spec.maintenance.table_properties()})
    else:
        kind = "string" if job.plan.table.affects == "same" else "date"
        values = ", ".join(literal(str(value), kind) for value in sorted(written))
        writer = writer.option("replaceWhere", f"`{column}` in ({values})")
    writer.save(uri)


def _committed(lake: Lake, key: str, batch: str) -> tuple[int | None, int]:
    """The version our commit got and the rows it wrote."""
    table = lake.open(key)
    if table is None:
        return None, 0
    for commit in commit_history(lake, key, newest=table.version(), limit=20):
        if commit.metadata.get("operation") == OPERATION and commit.metadata.get("batch") == batch:
            return commit.version, int(commit.metrics.get("numOutputRows", 0))
    return None, 0
