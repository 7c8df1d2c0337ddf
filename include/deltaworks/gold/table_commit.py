"""Commits the answer of a gold table's build, in one commit that names its inputs and what computed it.

Large results are written with Spark's writer. Its overwrite takes a dozen jobs and several log reads, even for few
rows, and most refreshes write some thousand. Small results, and the first rows of a new table, are therefore collected
as Arrow and committed by the driver: one file per date, or per hour in tables with a grain, so that the next build of
an hour can remove files without reading them.

The build number guards the commit: a repetition commits nothing, and of two concurrent builds one commits.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ConcurrencyError
from deltaworks.gold.parts import Part
from deltaworks.gold.pinned_inputs import BUILT_FROM, FINGERPRINT, LATE_ROWS, BuiltFrom
from deltaworks.gold.plan import GoldPlan
from deltaworks.specs.descriptions import TableDescription, table_descriptions
from deltaworks.specs.gold import GoldTableSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.changed_hours import hours_of
from deltaworks.tables.changes import sql_literal
from deltaworks.tables.commit import TABLE_PROPERTIES, Step
from deltaworks.tables.creation import NewTable, basic_schema, create_table
from deltaworks.tables.descriptions import described_fields
from deltaworks.tables.driver_collect import MAX_COLLECTED_ROWS, accepts_file_commits, collect_rows
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import Action, TableState, commit_history, total_rows
from deltaworks.tables.rewrite import FileEffect, Replacement, ReplaceOutcome, replace_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from deltaworks.gold.input_views import InputViews


_DEFAULTS_FOR_TABLES = "spark.databricks.delta.properties.defaults."


def has_same_columns(state: TableState, answer: DataFrame) -> bool:
    """Whether a table has exactly the columns of the result, in the same order."""
    from pyspark.sql.types import StructType

    present = StructType.fromJson(json.loads(state.metadata["schemaString"]))
    return [(f.name, f.dataType.simpleString()) for f in present] == [
        (f.name, f.dataType.simpleString()) for f in answer.schema
    ]


def write_small_answer(
    answer: DataFrame | pa.Table,
    lake: Lake,
    state: TableState,
    table: GoldTableSpec,
    part: Part,
    *,
    predicate: str,
    step: Step,
    user_metadata: str,
) -> ReplaceOutcome | None:
    """Replaces the rows of `part` with a small result; returns None if Spark must write it.

    Idempotent per step; safe with concurrent writers.

    Args:
        answer: in the table's columns.
        state: of the table, read after the step was chosen.
        predicate: the condition of the replaced rows.

    Raises:
        ConcurrencyError, ContractError: from `replace_rows`.
    """
    fate = file_effect_of(part, table)
    before = total_rows(added for added in state.files.values() if fate(added) is not FileEffect.UNCHANGED)
    if before is None or before > MAX_COLLECTED_ROWS or not accepts_file_commits(lake, state, table.partition_by):
        return None
    schema_string = state.metadata["schemaString"]
    rows = answer if isinstance(answer, pa.Table) else collect_rows(answer, schema_string, max_rows=MAX_COLLECTED_ROWS)
    if rows is None:
        return None
    replacement = Replacement(
        rows=_rows_by_file(rows, part, table),
        classify_file=fate,
        retained_rows=_remaining_rows(part, table),
        predicate=predicate,
        step=step,
        user_metadata=user_metadata,
    )
    return replace_rows(lake, lake.objects, state.key, replacement, expected=state)


def create_small_table(
    answer: DataFrame,
    lake: Lake,
    key: str,
    table: GoldTableSpec,
    *,
    description: TableDescription,
    properties: Mapping[str, str | None],
    step: Step,
    user_metadata: str,
) -> int | None:
    """Creates a table with a small result as its first rows, and returns their number.

    Returns None if Spark must write the rows or the table exists.

    Args:
        properties: of the new table.
    """
    schema = basic_schema(answer.schema.jsonValue(), [table.partition_by])
    if schema is None or _has_defaults_for_tables(answer.sparkSession):
        return None
    rows = collect_rows(answer, json.dumps(schema), max_rows=MAX_COLLECTED_ROWS)
    if rows is None:
        return None
    new = NewTable(
        schema=described_fields(schema, description),
        description=description.text,
        partition_by=[table.partition_by],
        rows=rows,
        configuration=properties,
        step=step,
        user_metadata=user_metadata,
    )
    return create_table(lake, key, new)


def has_small_inputs(views: InputViews, table: GoldTableSpec) -> bool:
    """Whether the inputs together have few enough rows to collect the result in the driver."""
    rows = views.count_rows(table.reads)
    return rows is not None and rows <= MAX_COLLECTED_ROWS


def _has_defaults_for_tables(spark: SparkSession) -> bool:
    """Whether the session sets default properties for new tables, which only Delta applies."""
    return any(name.startswith(_DEFAULTS_FOR_TABLES) for name in spark.conf.getAll)


def file_effect_of(part: Part, table: GoldTableSpec) -> Callable[[Action], FileEffect]:
    """Returns a function that decides, for a file of a gold table, whether replacing a part removes or rewrites it."""
    times = "" if table.grain is None else table.grain.column

    def fate(added: Action) -> FileEffect:
        text = (added.get("partitionValues") or {}).get(table.partition_by)
        if text is None:
            return FileEffect.UNCHANGED
        value = text if table.affects == "same" else dt.date.fromisoformat(text)
        if part.contains(value):
            return FileEffect.REMOVED
        replaced = {hour for hour in part.hours or () if hour.date() == value}
        if not replaced:
            return FileEffect.UNCHANGED
        hours = hours_of(added, times)
        if hours is None:
            return FileEffect.REWRITTEN
        if hours <= replaced:
            return FileEffect.REMOVED
        return FileEffect.REWRITTEN if hours & replaced else FileEffect.UNCHANGED

    return fate


def _remaining_rows(part: Part, table: GoldTableSpec) -> Callable[[pa.Table], list[pa.Table]]:
    """Returns a function for the rows to keep from rewritten files. It splits them at the replaced hours.

    Without the split, the bounds of a file would span these hours, and every rebuild would rewrite the file.
    """
    replaced = sorted(part.hours or ())

    def staying(rows: pa.Table) -> list[pa.Table]:
        remaining = rows.filter(pc.invert(_single_hours_mask(rows, part, table)))
        times = remaining.column("" if table.grain is None else table.grain.column)
        cuts = pa.array(replaced, times.type).cast(pa.int64()).to_numpy()
        slots = np.searchsorted(cuts, pc.fill_null(times.cast(pa.int64()), 0).to_numpy(), side="right")
        return [remaining.filter(pa.array(slots == number)) for number in np.unique(slots)]

    return staying


def _single_hours_mask(rows: pa.Table, part: Part, table: GoldTableSpec) -> pa.ChunkedArray:
    """Returns a mask of the rows in the part's single hours. Rows without a timestamp are not included."""
    grain = "" if table.grain is None else table.grain.column
    hours = pc.floor_temporal(rows.column(grain), unit="hour")
    return pc.is_in(hours, value_set=pa.array(sorted(part.hours or ()), hours.type), skip_nulls=True)


def _rows_by_file(rows: pa.Table, part: Part, table: GoldTableSpec) -> list[pa.Table]:
    """Splits rows into files: one per single hour, and one for complete dates."""
    if table.grain is None or not part.hours:
        return [rows]
    is_single_hour = _single_hours_mask(rows, part, table)
    hours = pc.floor_temporal(rows.column(table.grain.column), unit="hour")
    single = [rows.filter(pc.equal(hours, pa.scalar(hour, hours.type))) for hour in sorted(part.hours)]
    return [*single, rows.filter(pc.invert(is_single_hour))]


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
