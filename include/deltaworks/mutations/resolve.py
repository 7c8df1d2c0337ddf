"""Resolve: requests in, intervals out. What rows that arrived under an id, within a time, have become.

Pure: DataFrame to DataFrame, with nothing read, written or brought to the driver but one count a round.
docs/reference/mutations.md has the semantics, with examples.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaworks.mutations.pointer_doubling import Checkpoint, local_checkpoint, moves, resolve_chains
from deltaworks.mutations.requests import (
    DEPARTURE,
    UPDATES,
    last_updates,
    override_fields,
    timeline,
    with_later_updates,
)
from deltaworks.specs.mutation import INTERVALS_COLUMNS

#: What resolve gives, as a DDL string: rows that arrived as `id` at `valid_from` (null: ever) or later and before
#: `valid_to` (null: for ever) are called `final_id`, or were deleted under that id. `fields` are those that were set; a
#: null value gives back what arrived. `hops` counts moves; `last_time` and `last_seq` are those of the last request.
INTERVAL_SCHEMA = ", ".join(f"{name} {kind}" for name, kind in INTERVALS_COLUMNS.items())


@dataclass(frozen=True, slots=True)
class Trace:
    """What resolve finds on its way: what happens under each id, the updates that count, and where every move ends."""

    timeline: DataFrame
    updates: DataFrame
    destinations: DataFrame


def resolve(requests: DataFrame, *, checkpoint: Checkpoint = local_checkpoint) -> DataFrame:
    """What the requests come to, as intervals of INTERVAL_SCHEMA; rows outside of all of them are untouched.

    Intervals of an id do not overlap. Requests that cannot act (`requests.refusal`) are left out. The answer depends on
    the set of requests alone, not on their order or number of copies.

    Cost: ⌈log2 of the longest chain⌉ + 3 joins, each linear in the requests, and a sort by id. Jobs run while this is
    called: a materialisation and a count for each round.

    Args:
        requests: columns of REQUEST_SCHEMA.
        checkpoint: materialises a frame and cuts its lineage; by default on the executors.
    """
    return build_intervals(trace_requests(requests, checkpoint=checkpoint))


def trace_requests(requests: DataFrame, *, checkpoint: Checkpoint = local_checkpoint) -> Trace:
    """Follow every request to its end."""
    entries = checkpoint(timeline(requests))
    updates = last_updates(entries)
    return Trace(entries, updates, resolve_chains(checkpoint(moves(entries, updates)), checkpoint))


def build_intervals(trace: Trace) -> DataFrame:
    """The intervals of a trace: each period, parted where the last update of a field falls into it."""
    periods = _ended_periods(trace).unionByName(_open_periods(trace))
    # `sort_array` and not `array_sort`, which compares by an expression of its own.
    times = F.sort_array(F.array_distinct(F.transform("updates", lambda update: update["time"])))
    with_times = periods.withColumn("times", times)
    starts = F.concat(F.array("since"), F.col("times")).alias("valid_from")
    ends = F.concat(F.col("times"), F.array("until")).alias("valid_to")
    parts = F.arrays_zip(starts, ends)
    # Behind the last update of a period that no move ends, and at the very time of its end, there is nothing to do.
    untouched = F.col("part.valid_from").eqNullSafe(F.col("part.valid_to")) | (
        F.col("part.valid_to").isNull() & F.col("until").isNull()
    )
    split = with_times.withColumn("part", F.explode(parts)).where(~untouched)
    return with_later_updates(split, F.col("part.valid_from")).select(*_interval_columns())


def _ended_periods(trace: Trace) -> DataFrame:
    """Stretches of living ids that a move ends, with their updates and where the move leads in the end."""
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
    """Stretches of living ids that nothing but updates fall into: who is called by the id stays there."""
    return trace.updates.where(F.col("until").isNull()).select(
        *("org_id", "id", "until", "since", "updates"),
        F.col("id").alias("final_id"),
        F.lit(False).alias("deleted"),
        F.create_map().cast("map<string,string>").alias("fields"),
        F.lit(0).alias("hops"),
        F.lit(None).cast("struct<time:timestamp,seq:bigint>").alias("last"),
    )


def _interval_columns() -> list[Column | str]:
    """The columns of an interval, from its part of a period and where the period leads."""
    last = F.greatest("last", "last_update")
    return [
        *("org_id", "id", "part.valid_from", "part.valid_to", "final_id"),
        F.col("deleted").alias("deleted"),
        override_fields(F.col("set_fields"), F.col("fields")).alias("fields"),
        "hops",
        last["time"].alias("last_time"),
        last["seq"].alias("last_seq"),
    ]
