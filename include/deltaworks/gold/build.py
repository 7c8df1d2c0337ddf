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

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StringType

from deltaworks.control import paths
from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ConfigError
from deltaworks.gold.built_from import BUILT_FROM, FINGERPRINT, BuiltFrom, fingerprint, read_built_from
from deltaworks.gold.inputs import InputViews, PinnedInput, pin_inputs
from deltaworks.gold.plan import GoldPlan, dated_plan, full_plan, plan_rebuild
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.gold import GoldTableSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.changes import changed_partitions
from deltaworks.tables.commit import TABLE_PROPERTIES
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history
from deltaworks.tables.partitions import literal

OPERATION = "rebuild_gold"


@dataclass(frozen=True, slots=True)
class GoldTableResult:
    """What became of one gold table.

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


@dataclass(frozen=True, slots=True)
class GoldResult:
    """What became of a pipeline's gold tables, in the order they are declared."""

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

    Raises:
        ConfigError: GOLD_TABLE_UNKNOWN, GOLD_SQL_INVALID, GOLD_COLUMN_MISSING, GOLD_PARTITION_NOT_DATE or
            GOLD_PARTITION_NOT_TEXT.
    """
    started = time.monotonic()
    spec = catalog.pipeline(pipeline)
    lake = Lake(catalog.environment.lake)
    wanted = _selected(spec, tables)
    inputs = pin_inputs(lake, spec, sorted({name for table in wanted for name in table.reads}))
    jobs = [_job(catalog, spec, lake, table, inputs, full=full, dates=dates) for table in wanted]
    results = []
    with InputViews(spark, lake, inputs, spec.gold.dedupe) as views:
        views.prepare([job.plan for job in jobs if job.plan.has_work])
        for job in jobs:
            if job.plan.has_work:
                results.append(_build(spark, lake, spec, job, views))
            else:
                name = job.plan.table.name
                results.append(GoldTableResult(name, True, job.plan.reason, job.built_from))
    return GoldResult(pipeline, tuple(results), time.monotonic() - started)


def _selected(spec: PipelineSpec, tables: Sequence[str] | None) -> list[GoldTableSpec]:
    known = {table.name: table for table in spec.gold.tables}
    unknown = sorted(set(tables or ()) - set(known))
    if unknown:
        raise ConfigError(
            "GOLD_TABLE_UNKNOWN",
            f"Pipeline {spec.pipeline!r} has no gold table {', '.join(unknown)}.",
            hint=f"Its gold tables are {', '.join(known) or 'none'}.",
        )
    return [table for name, table in known.items() if not tables or name in tables]


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
    if all(pinned.version is None for pinned in own.values()):
        plan = GoldPlan(table, frozenset(), frozenset(), "none of its inputs exists yet")
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
    return plan_rebuild(table, changes, spec.gold.dedupe)


def _build(spark: SparkSession, lake: Lake, spec: PipelineSpec, job: _Job, views: InputViews) -> GoldTableResult:
    started = time.monotonic()
    table, key = job.plan.table, paths.table(spec.pipeline, job.plan.table.name)
    answer = _answer(spark, job, views)
    if not job.plan.full and not _same_columns(spark, lake.storage.spark_uri(key), answer):
        job = replace(job, plan=full_plan(table, "the columns of its answer changed"), stays=None)
        answer = _answer(spark, job, views)
    batch = ",".join(f"{name}@{version}" for name, version in job.built_from.items())
    _write(answer, lake.storage.spark_uri(key), job, pipeline=spec.pipeline, batch=batch)
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
    """What the SQL gives, cut to the dates that are rebuilt."""
    plan, column = job.plan, job.plan.table.partition_by
    views.register(plan.table.reads, plan.input)
    try:
        answer = spark.sql(job.sql)
    except (AnalysisException, ParseException) as error:
        raise ConfigError(
            "GOLD_SQL_INVALID",
            f"{job.sql_path}: {error}",
            hint=f"It may read the views {', '.join(plan.table.reads)}.",
        ) from error
    if column not in answer.columns:
        raise ConfigError(
            "GOLD_COLUMN_MISSING",
            f"{job.sql_path}: the answer has no column {column!r}, by which {plan.table.name!r} is partitioned.",
            hint=f"Its columns are {', '.join(answer.columns)}.",
        )
    if plan.table.affects == "all":
        return answer
    if plan.table.affects == "same":
        _check_text(job, answer)
    elif not isinstance(answer.schema[column].dataType, DateType):
        raise ConfigError(
            "GOLD_PARTITION_NOT_DATE",
            f"{job.sql_path}: {column!r} is {answer.schema[column].dataType.simpleString()}, not a date, so that "
            f"changed dates of the inputs do not tell which partitions of {plan.table.name!r} change.",
            hint=f"Cast it to date, or declare `affects: all` for {plan.table.name!r}.",
        )
    if plan.output.values is None:
        # A row without a value belongs to no partition that a later, partial rebuild could replace.
        return answer.filter(F.col(column).isNotNull())
    return answer.filter(F.col(column).isin(sorted(plan.output.values)))


def _check_text(job: _Job, answer: DataFrame) -> None:
    column = job.plan.table.partition_by
    if not isinstance(answer.schema[column].dataType, StringType):
        raise ConfigError(
            "GOLD_PARTITION_NOT_TEXT",
            f"{job.sql_path}: {column!r} is {answer.schema[column].dataType.simpleString()} in the answer and a text "
            "in its inputs, so that a value of these does not tell which partition changes.",
            hint=f"Take {column!r} over as it is, or declare `affects: all` for {job.plan.table.name!r}.",
        )


def _same_columns(spark: SparkSession, uri: str, answer: DataFrame) -> bool:
    present = spark.read.format("delta").load(uri).schema
    return [(f.name, f.dataType.simpleString()) for f in present] == [
        (f.name, f.dataType.simpleString()) for f in answer.schema
    ]


def _write(answer: DataFrame, uri: str, job: _Job, *, pipeline: str, batch: str) -> None:
    column = job.plan.table.partition_by
    stays = job.stays or BuiltFrom(job.built_from, job.fingerprint)
    said = {BUILT_FROM: dict(stays.versions), FINGERPRINT: stays.fingerprint}
    metadata = user_metadata(pipeline=pipeline, batch=batch, operation=OPERATION, **said)
    # Rebalanced, a small date becomes one file and a large one is still split.
    writer = answer.hint("rebalance", column).write.format("delta").mode("overwrite").partitionBy(column)
    writer = writer.option("userMetadata", metadata)
    written = job.plan.output.values
    if written is None:
        writer = writer.option("overwriteSchema", "true").options(**TABLE_PROPERTIES)
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
