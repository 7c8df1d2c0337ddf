"""Computes the entities that requests refer to, resolves requests to intervals, and connects ids to components.

An interval has the final id, deletion and fields of rows by their original id and time. Resolving is pure: DataFrame to
DataFrame. It reads and writes nothing, and collects only one count per round. docs/reference/mutations.md describes the
semantics, with examples.

An entity is identified by its id before its first request. Within one period, an id names a new entity if a request
refers to the id before any request has moved another entity to it. So an id that two entities use one after the other
gives two entities, and an id that was only a rename target gives none.

Components are used for forecasts and reports, never for resolution or alerts (`entity_sizes`): an id that two entities
use one after the other connects them, and only time separates them. They are computed by alternating large-star and
small-star steps until nothing changes (Kiveris, Lattanzi, Mirrokni, Rastogi, Vassilvitskii, "Connected Components in
MapReduce and Beyond", SoCC 2014). Edges run from the greater id to the smaller one, so both steps are a minimum by key
and a join. The neighbours of an id are never collected, and a hub, or a component of all ids, is distributed over tasks
like other rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaworks.mutations.interval_diff import Checkpoint, local_checkpoint, moves, resolve_chains
from deltaworks.mutations.requests import (
    ARRIVAL,
    DEPARTURE,
    UPDATES,
    invalid_reason,
    last_updates,
    override_fields,
    timeline,
    with_later_updates,
)
from deltaworks.specs.mutation import INTERVALS_COLUMNS, RENAME_OPERATIONS

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


def entities(request_trace: Trace) -> DataFrame:
    """Returns one row per entity: org_id, origin_id, valid_from (null: unbounded), final_id (null if deleted)
    and hops."""
    period = ("org_id", "id", "since", "until")
    is_renamed_here = (F.col("kind") == ARRIVAL) & (F.col("op") != "merge")
    first = (
        request_trace.timeline.where(~F.col("deleted"))
        .groupBy(*period)
        .agg(
            F.min(F.when(~is_renamed_here, F.col("time"))).alias("named"),
            F.min(F.when(is_renamed_here, F.col("time"))).alias("reached"),
        )
        .where(F.col("named").isNotNull() & (F.col("reached").isNull() | (F.col("named") <= F.col("reached"))))
        .alias("first")
    )
    same = (
        (F.col("first.org_id") == F.col("destination.org_id"))
        & (F.col("first.id") == F.col("destination.id"))
        & (F.col("first.until") == F.col("destination.time"))
    )
    final = F.when(~F.coalesce("deleted", F.lit(False)), F.coalesce("destination.final_id", "first.id"))
    return first.join(request_trace.destinations.alias("destination"), same, "left").select(
        "first.org_id",
        F.col("first.id").alias("origin_id"),
        F.col("first.since").alias("valid_from"),
        final.alias("final_id"),
        F.coalesce("hops", F.lit(0)).alias("hops"),
    )


def resolve_entities(requests: DataFrame, *, checkpoint: Checkpoint = local_checkpoint) -> DataFrame:
    """Returns the entities of requests with their components. Columns: those of `entities`, component_id,
    component_size.

    Args:
        requests: columns of `requests.REQUEST_SCHEMA`.
        checkpoint: materialises a DataFrame and cuts its lineage; by default on the executors.
    """
    resolved = entities(trace_requests(requests, checkpoint=checkpoint))
    grouped = components(edges(requests), checkpoint=checkpoint).withColumnRenamed("id", "origin_id")
    return resolved.join(grouped, ["org_id", "origin_id"], "left").select(
        *resolved.columns,
        F.coalesce("component_id", "origin_id").alias("component_id"),
        F.coalesce("component_size", F.lit(1)).cast("int").alias("component_size"),
    )


def edges(requests: DataFrame) -> DataFrame:
    """Returns the pairs of ids that renames and merges connect: org_id, id, new_id. Includes requests without
    effect."""
    connecting = F.col("op").isin(*RENAME_OPERATIONS) & invalid_reason().isNull() & (F.col("id") != F.col("new_id"))
    return requests.where(connecting).select("org_id", "id", "new_id")


def components(pairs: DataFrame, *, checkpoint: Checkpoint = local_checkpoint) -> DataFrame:
    """Returns the component of every id: org_id, id, component_id (its smallest id) and component_size (number of ids).

    Components do not span organisations. The number of rounds grows with the logarithm of a component's diameter; each
    round takes two joins, a materialisation and a count.

    Args:
        pairs: columns org_id, id and new_id, none null.
        checkpoint: materialises a frame and cuts its lineage; by default on the executors.
    """
    ends = ("id", "new_id")
    downward = pairs.where(F.col("id") != F.col("new_id")).select(
        "org_id", F.greatest(*ends).alias("id"), F.least(*ends).alias("centre")
    )
    stars = checkpoint(downward.distinct())
    while not _are_stars(stars):
        stars = checkpoint(_small_star(_large_star(stars)))
    members = stars.unionByName(stars.select("org_id", F.col("centre").alias("id"), "centre").distinct())
    sizes = stars.groupBy("org_id", "centre").agg((F.count("*") + 1).alias("component_size"))
    return members.join(sizes, ["org_id", "centre"]).select(
        "org_id", "id", F.col("centre").alias("component_id"), "component_size"
    )


def _min_neighbours(stars: DataFrame) -> DataFrame:
    """Returns the smallest neighbour of every id that has a smaller one."""
    return stars.groupBy(F.col("org_id").alias("least_org"), F.col("id").alias("least_of")).agg(
        F.min("centre").alias("least")
    )


def _large_star(stars: DataFrame) -> DataFrame:
    """Connects the greater neighbours of every id to its smallest neighbour, or to the id itself if none is smaller."""
    least = _min_neighbours(stars)
    below_centre = (F.col("org_id") == F.col("least_org")) & (F.col("centre") == F.col("least_of"))
    joined = stars.join(least, below_centre, "left")
    return joined.select("org_id", "id", F.coalesce("least", "centre").alias("centre")).distinct()


def _small_star(stars: DataFrame) -> DataFrame:
    """Connects every id and its smaller neighbours to the smallest of them."""
    least = _min_neighbours(stars)
    below_id = (F.col("org_id") == F.col("least_org")) & (F.col("id") == F.col("least_of"))
    remaining = stars.join(least, below_id).where(F.col("centre") != F.col("least"))
    return (
        remaining.select("org_id", F.col("centre").alias("id"), F.col("least").alias("centre"))
        .unionByName(
            least.select(
                F.col("least_org").alias("org_id"), F.col("least_of").alias("id"), F.col("least").alias("centre")
            )
        )
        .distinct()
    )


def _are_stars(stars: DataFrame) -> bool:
    """Returns whether every id is a centre or connected to exactly one centre, so that further steps change nothing."""
    ends = stars.select("org_id", F.col("id").alias("end"), F.lit(1).alias("below"), F.lit(0).alias("above"))
    centres = stars.select("org_id", F.col("centre").alias("end"), F.lit(0).alias("below"), F.lit(1).alias("above"))
    degrees = (
        ends.unionByName(centres)
        .groupBy("org_id", "end")
        .agg(F.sum("below").alias("below"), F.max("above").alias("above"))
    )
    unfinished = (F.col("below") > 1) | ((F.col("below") == 1) & (F.col("above") == 1))
    return degrees.where(unfinished).count() == 0
