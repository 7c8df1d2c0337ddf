"""Resolves requests to intervals: final id, deletion and fields of rows by their original id and time.

Pure: DataFrame to DataFrame. Reads and writes nothing, and collects only one count per round.
docs/reference/mutations.md describes the semantics, with examples.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaworks.mutations.interval_diff import Checkpoint, local_checkpoint, moves, resolve_chains
from deltaworks.mutations.requests import (
    DEPARTURE,
    UPDATES,
    last_updates,
    override_fields,
    timeline,
    with_later_updates,
)
from deltaworks.specs.mutation import INTERVALS_COLUMNS

#: Output schema of `resolve` as DDL: rows that arrived as `id` from `valid_from` (null: unbounded) until before
#: `valid_to` (null: unbounded) have the id `final_id`, or were deleted under it. `fields` are the set fields; a null
#: value restores the original. `hops` counts moves; `last_time` and `last_seq` belong to the last request.
INTERVAL_SCHEMA = ", ".join(f"{name} {kind}" for name, kind in INTERVALS_COLUMNS.items())


@dataclass(frozen=True, slots=True)
class Trace:
    """Intermediate results: the timeline of each id, the effective updates, and the destination of every move."""

    timeline: DataFrame
    updates: DataFrame
    destinations: DataFrame


def resolve(requests: DataFrame, *, checkpoint: Checkpoint = local_checkpoint) -> DataFrame:
    """Returns the outcome of the requests as intervals of INTERVAL_SCHEMA; rows outside all intervals do not change.

    Intervals of an id do not overlap. Invalid requests (`requests.invalid_reason`) are skipped. The result depends on
    the set of requests only, not on their order or duplicates.

    Cost: ⌈log2 of the longest chain⌉ + 3 joins, each linear in the requests, and a sort by id. Runs jobs: a
    materialisation and a count per round.

    Args:
        requests: columns of REQUEST_SCHEMA.
        checkpoint: materialises a frame and cuts its lineage; by default on the executors.
    """
    return build_intervals(trace_requests(requests, checkpoint=checkpoint))


def trace_requests(requests: DataFrame, *, checkpoint: Checkpoint = local_checkpoint) -> Trace:
    """Computes the timeline, the updates and the final destination of every request."""
    entries = checkpoint(timeline(requests))
    updates = last_updates(entries)
    return Trace(entries, updates, resolve_chains(checkpoint(moves(entries, updates)), checkpoint))


def build_intervals(trace: Trace) -> DataFrame:
    """Returns the intervals: each period of a trace, split at the last update of each field."""
    periods = _ended_periods(trace).unionByName(_open_periods(trace))
    # `sort_array`, because `array_sort` compares with a generated expression.
    times = F.sort_array(F.array_distinct(F.transform("updates", lambda update: update["time"])))
    with_times = periods.withColumn("times", times)
    starts = F.concat(F.array("since"), F.col("times")).alias("valid_from")
    ends = F.concat(F.col("times"), F.array("until")).alias("valid_to")
    parts = F.arrays_zip(starts, ends)
    # The part after the last update changes nothing if no move ends the period. A part of zero length contains no row.
    untouched = F.col("part.valid_from").eqNullSafe(F.col("part.valid_to")) | (
        F.col("part.valid_to").isNull() & F.col("until").isNull()
    )
    split = with_times.withColumn("part", F.explode(parts)).where(~untouched)
    return with_later_updates(split, F.col("part.valid_from")).select(*_interval_columns())


def _ended_periods(trace: Trace) -> DataFrame:
    """Returns periods that end with a move, with their updates and the move's final destination."""
    keys = ("org_id", "id", "until")
    departures = trace.timeline.where((F.col("kind") == DEPARTURE) & ~F.col("deleted")).select(*keys, "since")
    ends = trace.destinations.withColumnRenamed("time", "until")
    return (
        departures.join(trace.updates.select(*keys, "updates"), list(keys), "left")
        .join(ends, list(keys))
        .withColumn("updates", F.coalesce("updates", F.array().cast(UPDATES)))
        .select(*keys, "since", "updates", "final_id", "deleted", "fields", "hops", "last")
    )


def _open_periods(trace: Trace) -> DataFrame:
    """Returns periods with updates that do not end with a move. Their rows keep the id."""
    return trace.updates.where(F.col("until").isNull()).select(
        *("org_id", "id", "until", "since", "updates"),
        F.col("id").alias("final_id"),
        F.lit(False).alias("deleted"),
        F.create_map().cast("map<string,string>").alias("fields"),
        F.lit(0).alias("hops"),
        F.lit(None).cast("struct<time:timestamp,seq:bigint>").alias("last"),
    )


def _interval_columns() -> list[Column | str]:
    """Returns the columns of an interval from a part of a period and the destination of the period."""
    last = F.greatest("last", "last_update")
    return [
        *("org_id", "id", "part.valid_from", "part.valid_to", "final_id"),
        F.col("deleted").alias("deleted"),
        override_fields(F.col("set_fields"), F.col("fields")).alias("fields"),
        "hops",
        last["time"].alias("last_time"),
        last["seq"].alias("last_seq"),
    ]
