"""Resolve: requests in, intervals out. What rows that arrived under an id, within a time, have become.

Pure: DataFrame to DataFrame, with nothing read, written or brought to the driver but one count a round.
docs/mutations.md has the semantics, with examples.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaworks.mutations.effects import last_after, overridden, set_after, stretches
from deltaworks.mutations.pointers import Checkpoint, local_checkpoint, moves, settle
from deltaworks.mutations.timeline import timeline
from deltaworks.specs.mutation import INTERVALS_COLUMNS

#: What resolve gives, as a DDL string: rows that arrived as `id` at `valid_from` (null: ever) or later and before
#: `valid_to` (null: for ever) are called `final_id`, or were deleted under that id. `fields` are those that were set; a
#: null value gives back what arrived. `hops` counts moves; `last_time` and `last_seq` are those of the last request.
INTERVAL_SCHEMA = ", ".join(f"{name} {kind}" for name, kind in INTERVALS_COLUMNS.items())


@dataclass(frozen=True, slots=True)
class Trace:
    """What resolve finds on its way: what happens under each id, its stretches, and where every move ends."""

    timeline: DataFrame
    stretches: DataFrame
    settled: DataFrame


def resolve(requests: DataFrame, *, checkpoint: Checkpoint = local_checkpoint) -> DataFrame:
    """What the requests come to, as intervals of INTERVAL_SCHEMA; rows outside of all of them are untouched.

    Intervals of an id do not overlap. Requests that cannot act (`requests.refusal`) are left out. The answer depends on
    the set of requests alone, not on their order or number of copies.

    Cost: ⌈log2 of the longest chain⌉ + 2 joins, each linear in the requests, and a sort by id. Jobs run while this is
    called: a materialisation and a count for each round.

    Args:
        requests: columns of REQUEST_SCHEMA.
        checkpoint: materialises a frame and cuts its lineage; by default on the executors.
    """
    return intervals(trace(requests, checkpoint=checkpoint))


def trace(requests: DataFrame, *, checkpoint: Checkpoint = local_checkpoint) -> Trace:
    """Follow every request to its end."""
    happened = checkpoint(timeline(requests))
    found = stretches(happened)
    return Trace(happened, found, settle(checkpoint(moves(happened, found)), checkpoint))


def intervals(traced: Trace) -> DataFrame:
    """The intervals of a trace: each stretch, parted where the last update of a field falls into it."""
    stretch, end = traced.stretches.alias("stretch"), traced.settled.alias("settled")
    same = (
        (F.col("stretch.org_id") == F.col("settled.org_id"))
        & (F.col("stretch.id") == F.col("settled.id"))
        & (F.col("stretch.until") == F.col("settled.time"))
    )
    updates = F.col("stretch.updates")
    times = F.array_sort(F.array_distinct(F.transform(updates, lambda each: each["time"])))
    starts = F.concat(F.array("stretch.since"), times)
    ends = F.concat(times, F.array("stretch.until"))
    parts = F.transform(
        F.arrays_zip(starts.alias("valid_from"), ends.alias("valid_to")),
        lambda part: F.struct(part["valid_from"].alias("valid_from"), part["valid_to"].alias("valid_to")),
    )
    # Behind the last update of a stretch that no move ends, and at the very time of its end, there is nothing to do.
    untouched = F.col("part.valid_from").eqNullSafe(F.col("part.valid_to")) | (
        F.col("part.valid_to").isNull() & F.col("until").isNull()
    )
    joined = (
        stretch.join(end, same, "left")
        .select(
            "stretch.org_id",
            "stretch.id",
            "stretch.until",
            "stretch.updates",
            *("settled.final_id", "settled.gone", "settled.fields", "settled.hops", "settled.last"),
            F.explode(parts).alias("part"),
        )
        .where(~untouched)
    )
    return joined.select(*_outcome())


def _outcome() -> list[Column | str]:
    """The columns of an interval, from its stretch, its part of it and the end of the move that closes it."""
    start, updates = F.col("part.valid_from"), F.col("updates")
    none = F.create_map().cast("map<string,string>")
    last = F.greatest(F.col("last"), last_after(updates, start))
    return [
        "org_id",
        "id",
        F.col("part.valid_from").alias("valid_from"),
        F.col("part.valid_to").alias("valid_to"),
        F.coalesce("final_id", "id").alias("final_id"),
        F.coalesce("gone", F.lit(False)).alias("deleted"),
        overridden(set_after(updates, start), F.coalesce("fields", none)).alias("fields"),
        F.coalesce("hops", F.lit(0)).alias("hops"),
        last["time"].alias("last_time"),
        last["seq"].alias("last_seq"),
    ]
