"""Connected components of ids: which ids were ever connected by requests, at whatever time.

For grouping, reports and alerts on giant components, never for resolving: an id that was used by two entities in turn
connects them, and only time tells them apart.

Large-star and small-star in turn until nothing is left to do (Kiveris, Lattanzi, Mirrokni, Rastogi, Vassilvitskii,
"Connected Components in MapReduce and Beyond", SoCC 2014). Edges are kept from the greater id to the smaller one, so
that both steps are a minimum by key and a join: the neighbours of an id are never gathered, and a hub, or a component
of all ids there are, is spread over tasks as any other rows.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltaworks.mutations.pointers import Checkpoint, local_checkpoint
from deltaworks.mutations.requests import RENAMING, refusal


def edges(requests: DataFrame) -> DataFrame:
    """What renames and merges connect: org_id, id, new_id. Those that lose against another of their time do too."""
    connecting = F.col("op").isin(*RENAMING) & refusal().isNull() & (F.col("id") != F.col("new_id"))
    return requests.where(connecting).select("org_id", "id", "new_id")


def components(connected: DataFrame, *, checkpoint: Checkpoint = local_checkpoint) -> DataFrame:
    """The component of every id of the edges: org_id, id, component_id (its least id) and component_size (its ids).

    Components never reach across organisations. Rounds grow with the logarithm of a component's diameter; each is two
    joins, a materialisation and a count.

    Args:
        connected: columns org_id, id and new_id, neither null.
        checkpoint: materialises a frame and cuts its lineage; by default on the executors.
    """
    ends = ("id", "new_id")
    downward = connected.where(F.col("id") != F.col("new_id")).select(
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


def _least(stars: DataFrame) -> DataFrame:
    """The least neighbour of every id that has one below it."""
    return stars.groupBy(F.col("org_id").alias("least_org"), F.col("id").alias("least_of")).agg(
        F.min("centre").alias("least")
    )


def _large_star(stars: DataFrame) -> DataFrame:
    """Every id's greater neighbours are connected to its least neighbour, or to itself where it has none below it."""
    least = _least(stars)
    below_centre = (F.col("org_id") == F.col("least_org")) & (F.col("centre") == F.col("least_of"))
    joined = stars.join(least, below_centre, "left")
    return joined.select("org_id", "id", F.coalesce("least", "centre").alias("centre")).distinct()


def _small_star(stars: DataFrame) -> DataFrame:
    """Every id and its smaller neighbours are connected to the least of these."""
    least = _least(stars)
    below_id = (F.col("org_id") == F.col("least_org")) & (F.col("id") == F.col("least_of"))
    others = stars.join(least, below_id).where(F.col("centre") != F.col("least"))
    return (
        others.select("org_id", F.col("centre").alias("id"), F.col("least").alias("centre"))
        .unionByName(
            least.select(
                F.col("least_org").alias("org_id"), F.col("least_of").alias("id"), F.col("least").alias("centre")
            )
        )
        .distinct()
    )


def _are_stars(stars: DataFrame) -> bool:
    """Whether every id is either a centre or connected to one centre: no step would change anything then."""
    ends = stars.select("org_id", F.col("id").alias("end"), F.lit(1).alias("below"), F.lit(0).alias("above"))
    centres = stars.select("org_id", F.col("centre").alias("end"), F.lit(0).alias("below"), F.lit(1).alias("above"))
    counted = (
        ends.unionByName(centres)
        .groupBy("org_id", "end")
        .agg(F.sum("below").alias("below"), F.max("above").alias("above"))
    )
    unfinished = (F.col("below") > 1) | ((F.col("below") == 1) & (F.col("above") == 1))
    return counted.where(unfinished).count() == 0
