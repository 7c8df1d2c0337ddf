"""Pointer doubling: where every move ends, in as many joins as the logarithm of the longest chain.

Each move points to the next one out of the place it leads to. A round lets every move that is still under way jump over
the one it points to, taking over its destination and laying its effects over its own. After a round of these a move
has gone twice as far (Hillis and Steele, "Data Parallel Algorithms", CACM 29(12), 1986, on the ends of linked lists).
Time only grows along a chain, so there are no cycles to look for.

Only moves that are under way take part on the left side of a join; each meets exactly one row. Many moves into one id
are many rows with one key, which adaptive execution splits: nothing is gathered by chain, id or component.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltaworks.mutations.requests import ARRIVAL, UPDATES, moment, overridden, with_updates_after

#: Frames in one union. Spark generates what reads a union once for every part of it.
_PARTS = 4

#: Materialises a frame and cuts its lineage.
Checkpoint = Callable[[DataFrame], DataFrame]


def local_checkpoint(frame: DataFrame) -> DataFrame:
    """Keep a frame on the executors. A lost executor fails the job, which is then run again."""
    return frame.localCheckpoint(eager=True)


def moves(timeline: DataFrame, updates: DataFrame) -> DataFrame:
    """Every move with what it does at first: org_id, id, time (its key), and its effect up to the next move.

    The effect: `final_id` and `gone` (where it leads), `next_time` (with `final_id` the key of the next move, null
    where it ends), `fields`, `hops` and `last` (time and sequence of its last request).

    Args:
        updates: `effects.last_updates` of the timeline.
    """
    comes = timeline.where(F.col("kind") == ARRIVAL).alias("comes")
    same = (
        (F.col("comes.org_id") == F.col("stretch.org_id"))
        & (F.col("comes.id") == F.col("stretch.id"))
        & F.col("comes.until").eqNullSafe(F.col("stretch.until"))
        & ~F.col("comes.gone")
    )
    met = comes.join(updates.alias("stretch"), same, "left").select(
        "comes.org_id",
        F.col("comes.origin").alias("id"),
        "comes.time",
        "comes.seq",
        F.col("comes.id").alias("final_id"),
        "comes.gone",
        F.col("comes.until").alias("next_time"),
        F.coalesce("stretch.updates", F.array().cast(UPDATES)).alias("updates"),
    )
    return with_updates_after(met, F.col("time")).select(
        *("org_id", "id", "time", "final_id", "gone", "next_time"),
        F.col("set_fields").alias("fields"),
        F.lit(1).alias("hops"),
        F.greatest(moment(F.col("time"), F.col("seq")), "last_update").alias("last"),
    )


def settle(first: DataFrame, checkpoint: Checkpoint) -> DataFrame:
    """Let every move run to its end; `first` is materialised. Columns as of `moves`, with no next_time anywhere.

    A chain of n moves takes ⌈log2 n⌉ rounds of one join and one count each; every few rounds what has settled is
    materialised as one frame.
    """
    under_way = F.col("next_time").isNotNull()
    settled, moving = [first.where(~under_way)], first.where(under_way)
    while moving.count():
        jumped = checkpoint(jump(moving, _union([*settled, moving])))
        settled.append(jumped.where(~under_way))
        moving = jumped.where(under_way)
        if len(settled) > _PARTS:
            settled = [checkpoint(_union(settled))]
    return _union(settled)


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)


def jump(moving: DataFrame, targets: DataFrame) -> DataFrame:
    """Let every moving row take over the destination of the target it points to, its effects over the row's own.

    Each points to one that is there: the join is an inner one, and either side may be the one that is sent around.
    """
    onto = targets.select(*(F.col(name).alias(f"onto_{name}") for name in targets.columns))
    same = (
        (F.col("org_id") == F.col("onto_org_id"))
        & (F.col("final_id") == F.col("onto_id"))
        & (F.col("next_time") == F.col("onto_time"))
    )
    return moving.join(onto, same).select(
        "org_id",
        "id",
        "time",
        F.col("onto_final_id").alias("final_id"),
        F.col("onto_gone").alias("gone"),
        F.col("onto_next_time").alias("next_time"),
        overridden(F.col("fields"), F.col("onto_fields")).alias("fields"),
        (F.col("hops") + F.col("onto_hops")).alias("hops"),
        # An update at the very time of the next move may have the higher sequence of the two.
        F.greatest("last", "onto_last").alias("last"),
    )
