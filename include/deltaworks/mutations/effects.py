"""What a series of requests comes to, as columns: fields that were set and when, the later over the earlier."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaworks.mutations.timeline import UPDATED

#: An array of updates, of each field one.
UPDATES = "array<struct<time:timestamp,seq:bigint,value:string,field:string>>"


def overridden(earlier: Column, later: Column) -> Column:
    """Two maps of fields in one: what the later one sets, to null even, wins."""
    kept = F.map_filter(earlier, lambda name, _: ~F.map_contains_key(later, name))
    return F.when(F.size(later) == 0, earlier).when(F.size(earlier) == 0, later).otherwise(F.map_concat(kept, later))


def with_updates_after(frame: DataFrame, time: Column) -> DataFrame:
    """Add what a row's `updates` set on what came to their stretch at a time; a null time is before all of them.

    Adds `set_fields`, and `last_update` (time and sequence of the last of them, null where there is none).
    """
    # In steps, each a column the next one names: an expression over arrays that is written twice is computed twice, and
    # shipped to tasks as often.
    met = frame.withColumn("met", F.filter("updates", lambda each: time.isNull() | (each["time"] > time)))
    fields = F.map_from_entries(F.transform("met", lambda each: F.struct(each["field"], each["value"])))
    last = F.array_max(F.transform("met", lambda each: moment(each["time"], each["seq"])))
    return met.withColumns({"set_fields": fields, "last_update": last}).drop("met")


def moment(time: Column, seq: Column) -> Column:
    """A time and a sequence as one value that orders requests; a missing sequence is before all others."""
    return F.struct(time.alias("time"), seq.alias("seq"))


def last_updates(timeline: DataFrame) -> DataFrame:
    """The updates that count in each stretch of a living id that has some: org_id, id, since, until, `updates`.

    `updates` holds, for each field, the last update of the stretch alone: it is later than any other one that reaches
    the same row. So a hundred thousand updates of an id weigh as much as one.
    """
    stretch = ("org_id", "id", "since", "until")
    set_fields = timeline.where(F.col("kind") == UPDATED).select(
        *stretch, "time", "seq", F.explode("fields").alias("field", "value")
    )
    last = set_fields.groupBy(*stretch, "field").agg(F.max(F.struct("time", "seq", "value")).alias("last"))
    update = F.struct("last.time", "last.seq", "last.value", "field")
    return last.groupBy(*stretch).agg(F.collect_list(update).alias("updates"))
