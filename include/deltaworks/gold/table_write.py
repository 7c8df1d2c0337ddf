"""Commits a gold build: small results directly, others with Spark's writer. The build number guards both."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ConcurrencyError
from deltaworks.gold.inputs import BUILT_FROM, FINGERPRINT, BuiltFrom
from deltaworks.gold.plan import GoldPlan
from deltaworks.gold.small_write import create_small_table, write_small_answer
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.changes import sql_literal
from deltaworks.tables.commit import TABLE_PROPERTIES, Step
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import TableState, commit_history
from deltaworks.tables.spark.driver_collect import MAX_COLLECTED_ROWS

if TYPE_CHECKING:
    from deltaworks.gold.input_views import InputViews
    from deltaworks.gold.table_build import TableJob

OPERATION = "rebuild_gold"
#: Key of `userMetadata` that identifies a build's commit.
_BUILD_ID = "build"


def write_answer(
    answer: DataFrame, lake: Lake, job: TableJob, state: TableState | None, *, spec: PipelineSpec, views: InputViews
) -> tuple[int, int]:
    """Commits the result; returns the version and the number of rows written.

    Args:
        state: of the table, unless all rows are rewritten.
        views: the inputs of the build.
    """
    recorded_build, build = job.previous_build or BuiltFrom(job.built_from, job.fingerprint), uuid.uuid4().hex
    origin = {BUILT_FROM: dict(recorded_build.versions), FINGERPRINT: recorded_build.fingerprint, _BUILD_ID: build}
    batch = ",".join(f"{name}@{version}" for name, version in job.built_from.items())
    metadata = user_metadata(pipeline=spec.pipeline, batch=batch, operation=OPERATION, **origin)
    if state is not None:
        table, part, predicate = job.plan.table, job.plan.output, _replace_condition(job.plan)
        small = write_small_answer(
            answer, lake, state, table, part, predicate=predicate, step=job.step, user_metadata=metadata
        )
        if small is not None and small.version is not None:
            return small.version, small.rows
        if small is not None:
            # The commit may be from this build, if its reply was lost.
            return _find_commit(lake, job.key, build)
    properties = {**TABLE_PROPERTIES, **spec.maintenance.table_properties()}
    if job.plan.full and lake.open(job.key) is None and _has_small_inputs(views, job):
        rows = create_small_table(
            answer, lake, job.key, job.plan.table, properties=properties, step=job.step, user_metadata=metadata
        )
        if rows is not None:
            return 0, rows
    _write(answer, lake.storage.spark_uri(job.key), job, properties=properties, metadata=metadata)
    return _find_commit(lake, job.key, build)


def _has_small_inputs(views: InputViews, job: TableJob) -> bool:
    """Whether the inputs together have few enough rows to collect the result in the driver."""
    rows = views.count_rows(job.plan.table.reads)
    return rows is not None and rows <= MAX_COLLECTED_ROWS


def _write(answer: DataFrame, uri: str, job: TableJob, *, properties: Mapping[str, str | None], metadata: str) -> None:
    """Commits the result with Spark's writer."""
    column = job.plan.table.partition_by
    # Rebalance writes one file for a small date and splits a large one.
    writer = answer.hint("rebalance", column).write.format("delta").mode("overwrite").partitionBy(column)
    writer = writer.option("userMetadata", metadata).options(**_idempotence_options(job.step))
    written = job.plan.output.values
    if written is None:
        writer = writer.option("overwriteSchema", "true")
        writer = writer.options(**properties)
    else:
        writer = writer.option("replaceWhere", _replace_condition(job.plan))
    writer.save(uri)


def _replace_condition(plan: GoldPlan) -> str:
    """Returns the condition of the replaced rows."""
    column, grain = plan.table.partition_by, plan.table.grain
    if grain is not None:
        return plan.output.condition(column, grain.column)
    kind = "string" if plan.table.affects == "same" else "date"
    written = plan.output.values or ()
    replaced = [f"`{column}` in ({', '.join(sql_literal(str(value), kind) for value in sorted(written))})"]
    if plan.since is not None:
        replaced = [*(replaced if written else []), f"`{column}` >= {sql_literal(str(plan.since), kind)}"]
    return " or ".join(replaced)


def _idempotence_options(step: Step) -> dict[str, str | int]:
    """Returns writer options by which Delta skips a transaction it already has and rejects a concurrent one."""
    return {"txnAppId": step.app_id, "txnVersion": step.version}


def _find_commit(lake: Lake, key: str, build: str) -> tuple[int, int]:
    """Returns the version of this build's commit and the number of rows it wrote."""
    table = lake.open(key)
    for commit in () if table is None else commit_history(lake, key, newest=table.version(), limit=20):
        if commit.metadata.get(_BUILD_ID) == build:
            # Hourly builds also copy the remaining rows of rewritten files.
            rows = int(commit.metrics.get("numOutputRows", 0)) - int(commit.metrics.get("numCopiedRows", 0))
            return commit.version, rows
    raise overtaken_error(key)


def overtaken_error(key: str) -> ConcurrencyError:
    """Returns the error of a build that would overwrite the result of newer inputs, or that commits second."""
    return ConcurrencyError(
        "GOLD_OVERTAKEN",
        f"{key}: another build or a refresh committed after this build was planned, so this build did not commit.",
    )
