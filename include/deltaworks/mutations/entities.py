"""Entities, and the connected components of their ids: what requests refer to, and which ids they ever connected.

An entity is identified by the id it had before its first request. An id within one period of time names an entity of
its own when a request refers to it (renames, merges, deletes or updates it, or merges another into it) before any
request has led another entity there. So an id that was used by two entities in turn gives two, and one that others were
only renamed to gives none.

Components are for grouping, reports and alerts on giant components, never for resolving: an id that was used by two
entities in turn connects them, and only time separates them. They are computed by alternating large-star and small-star
steps until nothing changes (Kiveris, Lattanzi, Mirrokni, Rastogi, Vassilvitskii, "Connected Components in MapReduce and
Beyond", SoCC 2014). Edges run from the greater id to the smaller one, so that both steps are a minimum by key and a
join: the neighbours of an id are never gathered, and a hub, or a component of all ids, is spread over tasks like other
rows.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltaworks.mutations.pointer_doubling import Checkpoint, local_checkpoint
from deltaworks.mutations.requests import ARRIVAL, RENAME_OPERATIONS, invalid_reason
from deltaworks.mutations.resolve import Trace, trace_requests


def entities(request_trace: Trace) -> DataFrame:
    """One row for each entity: org_id, origin_id, valid_from (since when it had that id, null for ever), final_id (null
    where it was deleted) and hops.
    """
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
    """The entities of the requests with their components. Columns: those of `entities`, component_id, component_size.

    Args:
        requests: columns of `requests.REQUEST_SCHEMA`.
        checkpoint: materialises a frame and cuts its lineage; by default on the executors.
    """
    resolved = entities(trace_requests(requests, checkpoint=checkpoint))
    grouped = components(edges(requests), checkpoint=checkpoint).withColumnRenamed("id", "origin_id")
    return resolved.join(grouped, ["org_id", "origin_id"], "left").select(
        *resolved.columns,
        F.coalesce("component_id", "origin_id").alias("component_id"),
        F.coalesce("component_size", F.lit(1)).cast("int").alias("component_size"),
    )


def edges(requests: DataFrame) -> DataFrame:
    """The pairs of ids that renames and merges connect, ineffective ones included: org_id, id, new_id."""
    connecting = F.col("op").isin(*RENAME_OPERATIONS) & invalid_reason().isNull() & (F.col("id") != F.col("new_id"))
    return requests.where(connecting).select("org_id", "id", "new_id")


def components(pairs: DataFrame, *, checkpoint: Checkpoint = local_checkpoint) -> DataFrame:
    """The component of every id of the edges: org_id, id, component_id (its least id) and component_size (its ids).

    Components never reach across organisations. Rounds grow with the logarithm of a component's diameter; each is two
    joins, a materialisation and a count.

    Args:
        connected: columns org_id, id and new_id, neither null.
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
    """The least neighbour of every id that has one below it."""
    return stars.groupBy(F.col("org_id").alias("least_org"), F.col("id").alias("least_of")).agg(
        F.min("centre").alias("least")
    )


def _large_star(stars: DataFrame) -> DataFrame:
    """Every id's greater neighbours are connected to its least neighbour, or to itself where it has none below it."""
    least = _min_neighbours(stars)
    below_centre = (F.col("org_id") == F.col("least_org")) & (F.col("centre") == F.col("least_of"))
    joined = stars.join(least, below_centre, "left")
    return joined.select("org_id", "id", F.coalesce("least", "centre").alias("centre")).distinct()


def _small_star(stars: DataFrame) -> DataFrame:
    """Every id and its smaller neighbours are connected to the least of these."""
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
    """Whether every id is either a centre or connected to one centre, so that no step would change anything."""
    ends = stars.select("org_id", F.col("id").alias("end"), F.lit(1).alias("below"), F.lit(0).alias("above"))
    centres = stars.select("org_id", F.col("centre").alias("end"), F.lit(0).alias("below"), F.lit(1).alias("above"))
    degrees = (
        ends.unionByName(centres)
        .groupBy("org_id", "end")
        .agg(F.sum("below").alias("below"), F.max("above").alias("above"))
    )
    unfinished = (F.col("below") > 1) | ((F.col("below") == 1) & (F.col("above") == 1))
    return degrees.where(unfinished).count() == 0
