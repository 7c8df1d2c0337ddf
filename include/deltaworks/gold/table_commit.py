"""Commits the answer of a gold table's build, in one commit that names its inputs and what computed it.

Small answers are committed by the driver (`gold.small_write`), larger ones with Spark's writer. The build number guards
the commit: a repetition commits nothing, and of two concurrent builds one commits.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa

from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ConcurrencyError
from deltaworks.gold.pinned_inputs import BUILT_FROM, FINGERPRINT, LATE_ROWS, BuiltFrom
from deltaworks.gold.plan import GoldPlan
from deltaworks.gold.small_write import create_small_table, has_small_inputs, write_small_answer
from deltaworks.specs.descriptions import table_descriptions
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.changes import sql_literal
from deltaworks.tables.commit import TABLE_PROPERTIES, Step
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import TableState, commit_history

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from deltaworks.gold.input_views import InputViews

OPERATION = "rebuild_gold"
#: Keys of `userMetadata`: what identifies a build's commit, and what computed its rows.
_BUILD_ID = "build"
ENGINE = "engine"
Engine = Literal["Spark", "DuckDB", "partial sums"]
SPARK: Final = "Spark"
DUCKDB: Final = "DuckDB"
PARTIAL_SUMS: Final = "partial sums"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildCommit:
    """The commit of a build: the table at `key`, the planned part, the transaction, and `userMetadata`.

    The commit is found by the id `build` in `metadata`.
    """

    key: str
    plan: GoldPlan
    step: Step
    metadata: str
    build: str

    @classmethod
    def of(
        cls,
        spec: PipelineSpec,
        *,
        key: str,
        plan: GoldPlan,
        step: Step,
        built_from: Mapping[str, int],
        recorded: BuiltFrom,
        late_rows: Mapping[str, int],
        engine: Engine,
    ) -> BuildCommit:
        """Returns the commit of a build that has read `built_from`.

        Args:
            recorded: the input versions and the fingerprint that the commit records.
            late_rows: the rows of frozen dates that the table lacks, as `BuiltFrom` records them.
        """
        build = uuid.uuid4().hex
        origin = {
            BUILT_FROM: dict(recorded.versions),
            FINGERPRINT: recorded.fingerprint,
            _BUILD_ID: build,
            ENGINE: engine,
        }
        if late_rows:
            origin[LATE_ROWS] = dict(late_rows)
        batch = ",".join(f"{name}@{version}" for name, version in built_from.items())
        metadata = user_metadata(pipeline=spec.pipeline, batch=batch, operation=OPERATION, **origin)
        return cls(key=key, plan=plan, step=step, metadata=metadata, build=build)


def write_answer(
    answer: DataFrame,
    lake: Lake,
    commit: BuildCommit,
    state: TableState | None,
    *,
    spec: PipelineSpec,
    views: InputViews,
) -> tuple[int, int]:
    """Commits the result; returns the version and the number of rows written.

    Args:
        state: of the table, unless all rows are rewritten.
        views: the inputs of the build.
    """
    if state is not None and (small := replace_part(answer, lake, commit, state)) is not None:
        return small
    table, properties = commit.plan.table, {**TABLE_PROPERTIES, **spec.maintenance.table_properties()}
    if commit.plan.full and lake.open(commit.key) is None and has_small_inputs(views, table):
        rows = create_small_table(
            answer,
            lake,
            commit.key,
            table,
            description=table_descriptions(spec)[table.name],
            properties=properties,
            step=commit.step,
            user_metadata=commit.metadata,
        )
        if rows is not None:
            return 0, rows
    _write(answer, lake.storage.spark_uri(commit.key), commit, properties=properties)
    return _find_commit(lake, commit)


def replace_part(
    answer: DataFrame | pa.Table, lake: Lake, commit: BuildCommit, state: TableState
) -> tuple[int, int] | None:
    """Commits a small result in place of the part; returns the version and its rows, None if Spark must write it.

    Args:
        state: of the table, read after the step was chosen.
    """
    small = write_small_answer(
        answer,
        lake,
        state,
        commit.plan.table,
        commit.plan.output,
        predicate=_replace_condition(commit.plan),
        step=commit.step,
        user_metadata=commit.metadata,
    )
    if small is None:
        return None
    # Without a version, the commit may be from this build, if its reply was lost.
    return _find_commit(lake, commit) if small.version is None else (small.version, small.rows)


def _write(answer: DataFrame, uri: str, commit: BuildCommit, *, properties: Mapping[str, str | None]) -> None:
    """Commits the result with Spark's writer."""
    column = commit.plan.table.partition_by
    # Rebalance writes one file for a small date and splits a large one.
    writer = answer.hint("rebalance", column).write.format("delta").mode("overwrite").partitionBy(column)
    writer = writer.option("userMetadata", commit.metadata).options(**_idempotence_options(commit.step))
    written = commit.plan.output.values
    if written is None:
        writer = writer.option("overwriteSchema", "true")
        writer = writer.options(**properties)
    else:
        writer = writer.option("replaceWhere", _replace_condition(commit.plan))
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


def _find_commit(lake: Lake, build: BuildCommit) -> tuple[int, int]:
    """Returns the version of this build's commit and the number of rows it wrote."""
    table = lake.open(build.key)
    for commit in () if table is None else commit_history(lake, build.key, newest=table.version(), limit=20):
        if commit.metadata.get(_BUILD_ID) == build.build:
            # Hourly builds also copy the remaining rows of rewritten files.
            rows = int(commit.metrics.get("numOutputRows", 0)) - int(commit.metrics.get("numCopiedRows", 0))
            return commit.version, rows
    raise overtaken_error(build.key)


def overtaken_error(key: str) -> ConcurrencyError:
    """Returns the error of a build that would overwrite the result of newer inputs, or that commits second."""
    return ConcurrencyError(
        "GOLD_OVERTAKEN",
        f"{key}: another build or a refresh committed after this build was planned, so this build did not commit.",
    )
