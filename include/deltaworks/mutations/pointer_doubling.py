"""Resolves chains of moves by pointer doubling: the number of joins grows with the logarithm of the longest chain.

A move points to the next move that starts at its target id. In each round, every unresolved move takes over the
destination of the move it points to and applies that move's effects after its own. So each round doubles the distance
(Hillis and Steele, "Data Parallel Algorithms", CACM 29(12), 1986, on the ends of linked lists). Time increases along a
chain, so there are no cycles.

Only unresolved moves are on the left of a join, and each matches exactly one row. Many moves to one id are many rows
with one key, which adaptive execution splits: nothing is collected by chain, id or component.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltaworks.mutations.requests import ARRIVAL, UPDATES, override_fields, request_order, with_later_updates

#: Maximum number of DataFrames in a union. Spark generates the code that reads a union once per DataFrame.
_MAX_UNION_FRAMES = 4

#: Materialises a DataFrame and cuts its lineage.
Checkpoint = Callable[[DataFrame], DataFrame]


def local_checkpoint(frame: DataFrame) -> DataFrame:
    """Materialises a DataFrame on the executors. Losing an executor fails the job, which is then retried."""
    return frame.localCheckpoint(eager=True)


def moves(timeline: DataFrame, updates: DataFrame) -> DataFrame:
    """Returns every move with its direct effect: org_id, id, time (its key), and the effect up to the next move.

    Columns of the effect: `final_id` and `deleted` (the target), `next_time` (with `final_id` the key of the next move;
    null at the end of a chain), `fields`, `hops` and `last` (time and sequence of its last request).

    Args:
        updates: `requests.last_updates` of the timeline.
    """
    arrivals = timeline.where(F.col("kind") == ARRIVAL).alias("arrival")
    same = (
        (F.col("arrival.org_id") == F.col("period.org_id"))
        & (F.col("arrival.id") == F.col("period.id"))
        & F.col("arrival.until").eqNullSafe(F.col("period.until"))
        & ~F.col("arrival.deleted")
    )
    arrivals_with_updates = arrivals.join(updates.alias("period"), same, "left").select(
        "arrival.org_id",
        F.col("arrival.origin").alias("id"),
        "arrival.time",
        "arrival.seq",
        F.col("arrival.id").alias("final_id"),
        "arrival.deleted",
        F.col("arrival.until").alias("next_time"),
        F.coalesce("period.updates", F.array().cast(UPDATES)).alias("updates"),
    )
    return with_later_updates(arrivals_with_updates, F.col("time")).select(
        *("org_id", "id", "time", "final_id", "deleted", "next_time"),
        F.col("set_fields").alias("fields"),
        F.lit(1).alias("hops"),
        F.greatest(request_order(F.col("time"), F.col("seq")), "last_update").alias("last"),
    )


def resolve_chains(first: DataFrame, checkpoint: Checkpoint) -> DataFrame:
    """Follows every move to the end of its chain. Columns as in `moves`, with next_time null.

    Materialises `first`. A chain of n moves takes ⌈log2 n⌉ rounds of one join and one count each; every few rounds the
    resolved moves are materialised as one DataFrame.
    """
    is_unresolved = F.col("next_time").isNotNull()
    resolved, unresolved = [first.where(~is_unresolved)], first.where(is_unresolved)
    while unresolved.count():
        advanced = checkpoint(follow_pointers(unresolved, _union([*resolved, unresolved])))
        resolved.append(advanced.where(~is_unresolved))
        unresolved = advanced.where(is_unresolved)
        if len(resolved) > _MAX_UNION_FRAMES:
            resolved = [checkpoint(_union(resolved))]
    return _union(resolved)


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)


def follow_pointers(unresolved: DataFrame, targets: DataFrame) -> DataFrame:
    """Gives every unresolved move the destination of the move it points to, and adds the effects of that move.

    Every pointer has a target, so an inner join suffices and Spark may broadcast either input.
    """
    renamed_targets = targets.select(*(F.col(name).alias(f"onto_{name}") for name in targets.columns))
    same = (
        (F.col("org_id") == F.col("onto_org_id"))
        & (F.col("final_id") == F.col("onto_id"))
        & (F.col("next_time") == F.col("onto_time"))
    )
    return unresolved.join(renamed_targets, same).select(
        "org_id",
        "id",
        "time",
        F.col("onto_final_id").alias("final_id"),
        F.col("onto_deleted").alias("deleted"),
        F.col("onto_next_time").alias("next_time"),
        override_fields(F.col("fields"), F.col("onto_fields")).alias("fields"),
        (F.col("hops") + F.col("onto_hops")).alias("hops"),
        # An update at the same time as the next move may have the higher sequence.
        F.greatest("last", "onto_last").alias("last"),
    )
