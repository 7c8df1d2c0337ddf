"""Entities: what requests speak of, each by the id it had before its first request, and where it ends.

An id within one stretch of time names an entity of its own when a request speaks of it (renames, merges, deletes or
updates it, or merges another into it) before any request has led another entity there. So an id that was used by two
entities in turn gives two, and one that others were only renamed to gives none.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltaworks.mutations.components import components, edges
from deltaworks.mutations.pointers import Checkpoint, local_checkpoint
from deltaworks.mutations.resolve import Trace, trace
from deltaworks.mutations.timeline import ARRIVAL


def entities(traced: Trace) -> DataFrame:
    """One row for each entity: org_id, origin_id, valid_from (it had that id from then on, null for ever), final_id
    (null where it was deleted) and hops."""
    stretch = ("org_id", "id", "since", "until")
    renamed_here = (F.col("kind") == ARRIVAL) & (F.col("op") != "merge")
    first = (
        traced.timeline.where(~F.col("gone"))
        .groupBy(*stretch)
        .agg(
            F.min(F.when(~renamed_here, F.col("time"))).alias("named"),
            F.min(F.when(renamed_here, F.col("time"))).alias("reached"),
        )
        .where(F.col("named").isNotNull() & (F.col("reached").isNull() | (F.col("named") <= F.col("reached"))))
        .alias("first")
    )
    same = (
        (F.col("first.org_id") == F.col("settled.org_id"))
        & (F.col("first.id") == F.col("settled.id"))
        & (F.col("first.until") == F.col("settled.time"))
    )
    final = F.when(~F.coalesce("gone", F.lit(False)), F.coalesce("settled.final_id", "first.id"))
    return first.join(traced.settled.alias("settled"), same, "left").select(
        "first.org_id",
        F.col("first.id").alias("origin_id"),
        F.col("first.since").alias("valid_from"),
        final.alias("final_id"),
        F.coalesce("hops", F.lit(0)).alias("hops"),
    )


def resolve_entities(requests: DataFrame, *, checkpoint: Checkpoint = local_checkpoint) -> DataFrame:
    """The entities of the requests with their components: the columns of `entities`, component_id, component_size.

    Args:
        requests: columns of `requests.REQUEST_SCHEMA`.
        checkpoint: materialises a frame and cuts its lineage; by default on the executors.
    """
    found = entities(trace(requests, checkpoint=checkpoint))
    grouped = components(edges(requests), checkpoint=checkpoint).withColumnRenamed("id", "origin_id")
    return found.join(grouped, ["org_id", "origin_id"], "left").select(
        *found.columns,
        F.coalesce("component_id", "origin_id").alias("component_id"),
        F.coalesce("component_size", F.lit(1)).cast("int").alias("component_size"),
    )
