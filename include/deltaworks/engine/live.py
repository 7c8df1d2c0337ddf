"""Live tables of kind `counts`: a streaming aggregation of events per window and group.

Counts events, sums numeric columns and counts distinct values; duplicates sent by producers are included. Events behind
the watermark are dropped and counted. For other events, counts and sums of integers and decimals are exact; sums of
floats have float precision. Distinct counts are exact, from sets in the state. With `distinct_error_percent` they use a
HyperLogLog++ sketch with that relative standard deviation. Gold tables have the exact result including late events.
Live tables of kind `latest` are in `deltaworks.engine.keyed`.

Each batch is merged under an application transaction named after the query, so a repeated batch changes nothing and
never replaces newer counts by older ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.provenance import user_metadata
from deltaworks.engine.live_merge import LiveMerge
from deltaworks.errors import TransientError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.live import LIVE_PARTITION, LiveTableSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_SECONDS = 1.0


def ensure_live_table(lake: Lake, spec: PipelineSpec, live: LiveTableSpec) -> str:
    """Creates the live table if it does not exist; returns its key."""
    key = paths.table(spec.pipeline, live.name)
    lake.ensure(
        key,
        arrow_schema(live.count_columns(spec.table(live.reads).column_types())),
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
