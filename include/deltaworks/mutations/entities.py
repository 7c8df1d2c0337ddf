"""Computes the entities that requests refer to, and the connected components of their ids.

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

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltaworks.mutations.interval_diff import Checkpoint, local_checkpoint
from deltaworks.mutations.requests import ARRIVAL, invalid_reason
from deltaworks.mutations.resolve import Trace, trace_requests
from deltaworks.specs.mutation import RENAME_OPERATIONS


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
