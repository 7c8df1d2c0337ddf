"""Live tables of kind `counts`: a streaming aggregation of events per window and group.

Counts events, sums numeric columns and counts distinct values; duplicates sent by producers are included. Events behind
the watermark are dropped and counted. For other events, counts and sums of integers and decimals are exact; sums of
floats have float precision. Distinct counts are exact, from sets in the state. With `distinct_error_percent` they use a
HyperLogLog++ sketch with that relative standard deviation. Gold tables have the exact result including late events.
Live tables of kind `latest` are in `deltaworks.engine.keyed`.

Each batch is merged under an application transaction named after the query, so a repeated batch changes nothing and
never replaces newer counts by older ones. A batch has about a hundred rows. Delta's MERGE would run half a dozen Spark
jobs for them and read the log several times, so small merges are done and committed in this process; Spark does large
ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.provenance import user_metadata
from deltaworks.errors import TransientError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.descriptions import table_descriptions
from deltaworks.specs.live import LIVE_PARTITION, LiveTableSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.changes import sql_literal
from deltaworks.tables.commit import Step
from deltaworks.tables.descriptions import ensure_described
from deltaworks.tables.driver_collect import MAX_COLLECTED_ROWS, accepts_file_commits, collect_rows
from deltaworks.tables.files_commit import is_step_committed
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import Action, TableState, state_at, total_rows
from deltaworks.tables.rewrite import FileEffect, Replacement, replace_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# The merge of a batch's counts.

OPERATION = "live"
_DATE, _WINDOW = LIVE_PARTITION[0], "window_start"
_TRANSACTION_APP = "spark.databricks.delta.write.txnAppId"
_TRANSACTION_VERSION = "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


class LiveMerge:
    """The `foreachBatch` function of a live query.

    Args:
        key: key of the live table.
        before_merge: called before each merge; raising ends the query.
    """

    def __init__(
        self, lake: Lake, key: str, *, pipeline: str, live: LiveTableSpec, before_merge: Callable[[], None] | None
    ) -> None:
        self._lake, self._key, self._pipeline, self._live = lake, key, pipeline, live
        self._before_merge = before_merge
        self._key_columns = (_WINDOW, *live.group_by)

    def __call__(self, counts: DataFrame, batch_id: int) -> None:
        """Merges the counts of a batch unless it is already committed."""
        state = state_at(self._lake, self._lake.objects, self._key)
        # Cached, because a merge by Spark evaluates them several times.
        counts = counts.persist()
        try:
            rows = collect_rows(counts, state.metadata["schemaString"], max_rows=MAX_COLLECTED_ROWS)
            if rows is not None and not rows.num_rows:
                return
            if self._before_merge is not None:
                self._before_merge()
            # The query id is stored in the checkpoint. A new checkpoint has another id, so its batches, which count
            # from 0 again, are not mistaken for earlier ones.
            query_id = counts.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            step = Step(f"{self._pipeline}/live/{self._live.name}/{query_id}", batch_id)
            metadata = user_metadata(pipeline=self._pipeline, batch=batch_id, operation=OPERATION, query=query_id)
            if rows is None or not self._merge_in_process(rows, state, step, metadata):
                self._merge_by_spark(counts, step, metadata)
        finally:
            counts.unpersist()

    def _merge_in_process(self, rows: pa.Table, state: TableState, step: Step, metadata: str) -> bool:
        """Merges in this process if the batch and the affected rows are few. Returns False if Spark has to merge."""
        dates = {date.isoformat() for date in rows.column(_DATE).to_pylist()}
        affected = [added for added in state.files.values() if _date_of(added) in dates]
        present = total_rows(affected)
        if (
            present is None
            or present > MAX_COLLECTED_ROWS
            or any(
                pa.types.is_floating(rows.schema.field(name).type) or pa.types.is_nested(rows.schema.field(name).type)
                for name in self._key_columns
            )
        ):
            return False
        if not accepts_file_commits(self._lake, state, _DATE):
            return False
        replacement = Replacement(
            rows=[rows],
            classify_file=lambda added: FileEffect.REWRITTEN if _date_of(added) in dates else FileEffect.UNCHANGED,
            retained_rows=_retain_unreplaced_rows(rows, self._key_columns),
            predicate=f"`{_DATE}` {_in_list(dates)}",
            step=step,
            user_metadata=metadata,
        )
        outcome = replace_rows(self._lake, self._lake.objects, self._key, replacement, expected=state)
        # If nothing was committed, the table either has the batch, or its schema changed and Spark merges.
        return outcome.version is not None or is_step_committed(
            state_at(self._lake, self._lake.objects, self._key), step
        )

    def _merge_by_spark(self, counts: DataFrame, step: Step, metadata: str) -> None:
        from delta.tables import DeltaTable

        dates = {row[0].isoformat() for row in counts.select(_DATE).distinct().collect()}
        _set_transaction(counts.sparkSession, step, metadata)
        # Only literals prune the target's partitions; source values do not.
        key_conditions = [f"target.`{name}` <=> source.`{name}`" for name in self._key_columns]
        (
            DeltaTable.forPath(counts.sparkSession, self._lake.storage.spark_uri(self._key))
            .alias("target")
            .merge(counts.alias("source"), " AND ".join([f"target.{_DATE} {_in_list(dates)}", *key_conditions]))
            .whenMatchedUpdateAll()
            .whenNotMatchedInsertAll()
            .execute()
        )


def _set_transaction(session: SparkSession, step: Step, metadata: str) -> None:
    """Sets the transaction of Spark's next commit in the session. Each streaming query has its own copy of the
    session."""
    session.conf.set(_TRANSACTION_APP, step.app_id)
    session.conf.set(_TRANSACTION_VERSION, str(step.version))
    session.conf.set(_USER_METADATA, metadata)


def _in_list(dates: Collection[str]) -> str:
    return f"in ({', '.join(sql_literal(date, 'date') for date in sorted(dates))})"


def _date_of(added: Action) -> str | None:
    date: str | None = (added.get("partitionValues") or {}).get(_DATE)
    return date


def _retain_unreplaced_rows(rows: pa.Table, key_columns: Sequence[str]) -> Callable[[pa.Table], list[pa.Table]]:
    """Returns a function that removes the rows of a file that `rows` replaces."""
    newer = set(_keys(rows, key_columns))

    def retain(present: pa.Table) -> list[pa.Table]:
        return [present.filter(pa.array([key not in newer for key in _keys(present, key_columns)], pa.bool_()))]

    return retain


def _keys(rows: pa.Table, key_columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(rows.column(name).to_pylist() for name in key_columns), strict=True)


# The streaming query.

_POLL_SECONDS = 1.0


def ensure_live_table(lake: Lake, spec: PipelineSpec, live: LiveTableSpec) -> str:
    """Creates the live table if it does not exist; returns its key."""
    key = paths.table(spec.pipeline, live.name)
    ensure_described(
        lake,
        key,
        arrow_schema(live.count_columns(spec.table(live.reads).column_types())),
        table_descriptions(spec)[live.name],
        user_metadata=user_metadata(pipeline=spec.pipeline, batch="create", operation="create_table"),
        partition_by=LIVE_PARTITION,
        properties=spec.maintenance.table_properties(),
    )
    return key


def start_live_query(
    spark: SparkSession,
    catalog: Catalog,
    pipeline: str,
    live: LiveTableSpec,
    *,
    before_merge: Callable[[], None] | None = None,
    wait_seconds: float = 300.0,
    available_now: bool = False,
) -> StreamingQuery:
    """Starts the query of one live table once its source table exists. Returns the running query.

    Needs the pipeline's lease: with two drivers on one checkpoint, one of the queries fails.

    Args:
        before_merge: called before each merge; raising ends the query (lease lost, stop).
        wait_seconds: maximum wait for the source table.
        available_now: process the available data and end, instead of one batch per `trigger_seconds`.

    Raises:
        TransientError: LIVE_INPUT_MISSING, the source table was not created in time.
    """
    spec = catalog.pipeline(pipeline)
    lake = Lake(catalog.environment.lake)
    source = lake.storage.spark_uri(_await_source_table(lake, spec, live, wait_seconds))
    target = ensure_live_table(lake, spec, live)
    counts = _windowed_counts(
        _read_source(spark, source), live, live.sum_columns(spec.table(live.reads).column_types())
    )
    generation = PipelineHome.open(lake.storage, pipeline).generations.current()
    write = LiveMerge(lake, target, pipeline=pipeline, live=live, before_merge=before_merge)
    writer = (
        counts.writeStream.queryName(f"{pipeline}.{live.name}")
        .outputMode("update")
        .option("checkpointLocation", lake.storage.spark_uri(paths.live_checkpoint(pipeline, generation, live.name)))
        .foreachBatch(write)
    )
    if available_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{live.trigger_seconds} seconds").start()


def _await_source_table(lake: Lake, spec: PipelineSpec, live: LiveTableSpec, wait_seconds: float) -> str:
    key = paths.table(spec.pipeline, live.reads)
    deadline = time.monotonic() + wait_seconds
    while lake.open(key) is None:
        if time.monotonic() >= deadline:
            raise TransientError(
                "LIVE_INPUT_MISSING",
                f"{live.name!r} reads {live.reads!r}, which has not been created within {wait_seconds:.0f} s.",
            )
        time.sleep(_POLL_SECONDS)
    return key


def _read_source(spark: SparkSession, uri: str) -> DataFrame:
    return (
        spark.readStream.format("delta")
        # On a first run over a long history, files are read in event-time order; otherwise a batch of new events would
        # move the watermark past older, unread ones.
        .option("withEventTimeOrder", "true")
        # Deletes and merges in the bronze table are handled by gold; they must not end this query.
        .option("skipChangeCommits", "true")
        .load(uri)
    )


def _windowed_counts(events: DataFrame, live: LiveTableSpec, sums: Mapping[str, str]) -> DataFrame:
    from pyspark.sql import functions as F

    window = F.window("event_time", f"{live.window_minutes} minutes").alias("window")
    # A sum that overflows is null, instead of an error that ends the query repeatedly.
    sum_columns = [
        F.try_sum(name).cast(type_.replace("long", "bigint")).alias(column)
        for name, (column, type_) in zip(live.sum, sums.items(), strict=True)
    ]
    distinct_columns = [
        _distinct_count(name, live.distinct_error_percent).cast("bigint").alias(column)
        for name, column in zip(live.distinct, live.distinct_columns, strict=True)
    ]
    return (
        events.withWatermark("event_time", f"{live.watermark_minutes} minutes")
        .groupBy(window, *live.group_by)
        .agg(F.count("*").alias("events"), *sum_columns, *distinct_columns)
        .select(
            F.col("window.start").alias("window_start"),
            F.col("window.end").alias("window_end"),
            F.to_date("window.start").alias("window_date"),
            *live.group_by,
            "events",
            *sums,
            *live.distinct_columns,
            F.current_timestamp().alias("updated_at"),
        )
    )


def _distinct_count(name: str, error_percent: float) -> Column:
    """Returns the aggregation that counts distinct non-null values; streaming does not support `count(DISTINCT)`."""
    from pyspark.sql import functions as F

    if error_percent:
        return F.approx_count_distinct(name, rsd=error_percent / 100)
    return F.size(F.collect_set(name))
