"""Computes the periods of ids whose rows a batch changes: the outcome differs from before, or rows arrived late.

Every DataFrame has org_id, id (as it arrived), valid_from (null: unbounded) and valid_to (exclusive; null: unbounded).
An outcome is the final state of rows: final_id, deleted and the set fields; null if rows stay as they arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from deltaworks.mutations.requests import ARRIVAL, UPDATES, override_fields, request_order, with_later_updates

KEY = ("org_id", "id")
_ENTRIES = "array<struct<key:string,value:string>>"


def outcome() -> Column:
    """Returns the outcome of an interval as a comparable value; null if it changes nothing."""
    set_fields = F.array_sort(F.map_entries(F.map_filter("fields", lambda _, value: value.isNotNull()))).cast(_ENTRIES)
    is_unchanged = (F.col("final_id") == F.col("id")) & ~F.col("deleted") & (F.size(set_fields) == 0)
    state = F.struct(F.col("final_id"), F.col("deleted"), set_fields.alias("fields"))
    return F.when(~F.coalesce(is_unchanged, F.lit(False)), state)


def changed_periods(old: DataFrame, new: DataFrame) -> DataFrame:
    """Returns the periods in which two sets of intervals have different outcomes.

    Columns: the key, valid_from, valid_to, `before` and `after` (outcomes), and `start` and `end` of the new interval
    that contains the period (null without one). Periods of an id do not overlap. Uses one window over the bounds of
    both sets, without pairwise comparison.
    """
    edges = _edges(old, "old").unionByName(_edges(new, "new"))
    edges_by_time = edges.groupBy(*KEY, "at").agg(
        F.max(F.when(F.col("side") == "old", F.col("edge"))).alias("old"),
        F.max(F.when(F.col("side") == "new", F.col("edge"))).alias("new"),
    )
    time_order = Window.partitionBy(*KEY).orderBy(F.col("at").asc_nulls_first())
    running = time_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    states = edges_by_time.select(
        *KEY,
        F.col("at").alias("valid_from"),
        F.lead("at").over(time_order).alias("valid_to"),
        F.last("old", ignorenulls=True).over(running).alias("old"),
        F.last("new", ignorenulls=True).over(running).alias("new"),
    )
    inside = F.coalesce(F.col("new.begins"), F.lit(False))
    return states.where(~F.col("old.outcome").eqNullSafe(F.col("new.outcome"))).select(
        *KEY,
        "valid_from",
        "valid_to",
        F.col("old.outcome").alias("before"),
        F.col("new.outcome").alias("after"),
        inside.alias("inside"),
        F.col("new.start").alias("start"),
        F.col("new.end").alias("end"),
    )


def _edges(intervals: DataFrame, side: str) -> DataFrame:
    """Returns the start and end points of intervals. At a shared point the start of the next interval takes
    precedence."""
    begins = F.struct(
        F.lit(True).alias("begins"),
        F.col("valid_from").alias("start"),
        F.col("valid_to").alias("end"),
        outcome().alias("outcome"),
    )
    kind = intervals.select(begins.alias("edge")).schema["edge"].dataType
    ends = F.struct(
        F.lit(False).alias("begins"),
        F.lit(None).cast("timestamp").alias("start"),
        F.lit(None).cast("timestamp").alias("end"),
        F.lit(None).alias("outcome"),
    ).cast(kind)
    starts = intervals.select(*KEY, F.col("valid_from").alias("at"), F.lit(side).alias("side"), begins.alias("edge"))
    stops = intervals.where(F.col("valid_to").isNotNull()).select(
        *KEY, F.col("valid_to").alias("at"), F.lit(side).alias("side"), ends.alias("edge")
    )
    return starts.unionByName(stops)


def late_row_periods(arrived_rows: DataFrame, intervals: DataFrame) -> DataFrame:
    """Returns the intervals that contain late rows, clipped to the time range of these rows.

    Columns as in `changed_periods`, without `before`.

    Args:
        arrived_rows: org_id, id (as it arrived) and `time` of rows.
    """
    row, interval = arrived_rows.alias("row"), intervals.select("*", outcome().alias("outcome")).alias("interval")
    start, end = F.col("interval.valid_from"), F.col("interval.valid_to")
    inside = (
        (F.col("row.org_id") == F.col("interval.org_id"))
        & (F.col("row.id") == F.col("interval.id"))
        & (start.isNull() | (F.col("row.time") >= start))
        & (end.isNull() | (F.col("row.time") < end))
    )
    joined_rows = row.join(interval.where(F.col("interval.outcome").isNotNull()), inside)
    by_interval = joined_rows.groupBy("interval.org_id", "interval.id", start.alias("start"), end.alias("end")).agg(
        F.min("row.time").alias("valid_from"),
        (F.max("row.time") + F.expr("INTERVAL 1 MICROSECOND")).alias("valid_to"),
        F.first("interval.outcome").alias("after"),
    )
    return by_interval.select(*KEY, "valid_from", "valid_to", "after", F.lit(True).alias("inside"), "start", "end")


def merge_periods(changed: DataFrame, late: DataFrame) -> DataFrame:
    """Merges both sets into periods that do not overlap: key, valid_from, valid_to, final_id, deleted, fields (a map).

    The outcome is constant within a new interval, so its periods are merged into one. This may include rows that
    already have the outcome; they do not change, because the merge compares each row.
    """
    overlapping = changed.where("inside").drop("before").unionByName(late)
    starts_unbounded, ends_unbounded = F.max(F.col("valid_from").isNull()), F.max(F.col("valid_to").isNull())
    by_interval = overlapping.groupBy(*KEY, "start", "end").agg(
        F.when(~starts_unbounded, F.min("valid_from")).alias("valid_from"),
        F.when(~ends_unbounded, F.max("valid_to")).alias("valid_to"),
        F.first("after", ignorenulls=True).alias("after"),
    )
    outside = changed.where(~F.col("inside")).select(*KEY, "valid_from", "valid_to", "after")
    periods = by_interval.select(*KEY, "valid_from", "valid_to", "after").unionByName(outside)
    return periods.select(
        *KEY,
        "valid_from",
        "valid_to",
        F.coalesce("after.final_id", "id").alias("final_id"),
        F.coalesce("after.deleted", F.lit(False)).alias("deleted"),
        F.map_from_entries(F.coalesce("after.fields", F.array().cast(_ENTRIES))).alias("fields"),
    )


def full_coverage(intervals: DataFrame, mutated_ids: DataFrame) -> DataFrame:
    """Returns periods that cover all rows: every interval, and the time outside intervals for ids with mutated rows.

    Args:
        mutated_ids: org_id and id of rows that carry a mutation number.

    Columns as in `merge_periods`.
    """
    # A point with a null time starts the period before the first interval of each id.
    ids = intervals.select(*KEY).unionByName(mutated_ids.select(*KEY)).distinct()
    line_starts = ids.select(*KEY, F.lit(None).cast("timestamp").alias("at"), F.lit(None).alias("edge"))
    edges = _edges(intervals, "new").select(*KEY, "at", "edge")
    marks = edges.unionByName(line_starts.withColumn("edge", F.col("edge").cast(edges.schema["edge"].dataType)))
    marks_by_time = marks.groupBy(*KEY, "at").agg(F.max("edge").alias("edge"))
    time_order = Window.partitionBy(*KEY).orderBy(F.col("at").asc_nulls_first())
    return marks_by_time.select(
        *KEY,
        F.col("at").alias("valid_from"),
        F.lead("at").over(time_order).alias("valid_to"),
        F.coalesce("edge.outcome.final_id", "id").alias("final_id"),
        F.coalesce("edge.outcome.deleted", F.lit(False)).alias("deleted"),
        F.map_from_entries(F.coalesce("edge.outcome.fields", F.array().cast(_ENTRIES))).alias("fields"),
    )


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
