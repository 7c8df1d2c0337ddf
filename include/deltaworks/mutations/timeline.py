"""The timeline of each id (arrivals, departures, updates) and the fields that a series of requests sets.

A stretch of an id is the time between two departures from it. Whatever has the id at some time within a stretch leaves
with the departure that ends it. So one window over the entries of an id yields the next move of everything that arrives
there, without a join and without reading any other id.

Deleted rows have a place of their own beside each id, from which only an undelete leads back.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from deltaworks.mutations.requests import acting

#: Kinds of an entry, in the order in which entries of one time are met when time runs backwards: what arrives at an
#: id at a time stays over the moves of that time, and an update of that time still applies to what leaves.
ARRIVAL, DEPARTURE, UPDATED = 0, 1, 2

_PLACE = ("org_id", "id", "gone")
#: An array of updates, of each field one.
UPDATES = "array<struct<time:timestamp,seq:bigint,value:string,field:string>>"


def timeline(requests: DataFrame) -> DataFrame:
    """One row for each arrival, departure and update of an id.

    Columns: org_id, `id` and `gone` (the place), time, `kind`, seq, op, fields (of an update), `origin` (of an arrival:
    the id it left at this time), `since` and `until` (the stretch: the departures before and at its end, null where
    there is none).
    """
    org, time, seq, op = (F.col(name) for name in ("org_id", "time", "seq", "op"))

    def entry(place: Column, gone: Column, kind: int, fields: Column, origin: Column) -> Column:
        return F.struct(
            org.alias("org_id"),
            place.alias("id"),
            gone.alias("gone"),
            time.alias("time"),
            F.lit(kind).alias("kind"),
            seq.alias("seq"),
            op.alias("op"),
            fields.alias("fields"),
            origin.alias("origin"),
        )

    no_fields, nobody = F.lit(None).cast("map<string,string>"), F.lit(None).cast("string")
    leaves = entry(F.col("id"), F.col("revives"), DEPARTURE, no_fields, nobody)
    comes = entry(F.col("target"), F.col("removes"), ARRIVAL, no_fields, F.col("id"))
    updated = entry(F.col("id"), F.lit(False), UPDATED, F.col("fields"), nobody)
    entries = F.when(F.col("target").isNull(), F.array(updated)).otherwise(F.array(leaves, comes))
    exploded = acting(requests).select(F.inline(entries))
    departed = F.when(F.col("kind") == DEPARTURE, F.col("time"))
    # Time runs backwards: a frame that reaches to the end of a partition costs the square of its rows.
    later = Window.partitionBy(*_PLACE).orderBy(F.col("time").desc(), F.col("kind").asc())
    earlier = Window.partitionBy(*_PLACE).orderBy(F.col("time").asc(), F.col("kind").desc())
    return exploded.withColumns(
        {
            "until": F.last(departed, ignorenulls=True).over(
                later.rowsBetween(Window.unboundedPreceding, Window.currentRow)
            ),
            "since": F.last(departed, ignorenulls=True).over(earlier.rowsBetween(Window.unboundedPreceding, -1)),
        }
    )


def overridden(earlier: Column, later: Column) -> Column:
    """Merge two maps of fields; what the later one sets, even to null, wins."""
    remaining = F.map_filter(earlier, lambda name, _: ~F.map_contains_key(later, name))
    return (
        F.when(F.size(later) == 0, earlier).when(F.size(earlier) == 0, later).otherwise(F.map_concat(remaining, later))
    )


def with_updates_after(frame: DataFrame, time: Column) -> DataFrame:
    """Add the fields that `updates` set on rows that came to their stretch at a time; a null time precedes them all.

    Adds `set_fields`, and `last_update` (time and sequence of the last of them, null where there is none).
    """
    # In steps, each a column that the next one names: an array expression that is written twice is computed twice, and
    # shipped to tasks twice.
    met = frame.withColumn("met", F.filter("updates", lambda update: time.isNull() | (update["time"] > time)))
    fields = F.map_from_entries(F.transform("met", lambda update: F.struct(update["field"], update["value"])))
    last = F.array_max(F.transform("met", lambda update: moment(update["time"], update["seq"])))
    return met.withColumns({"set_fields": fields, "last_update": last}).drop("met")


def moment(time: Column, seq: Column) -> Column:
    """A time and a sequence as one value that orders requests; a missing sequence is before all others."""
    return F.struct(time.alias("time"), seq.alias("seq"))


def last_updates(timeline: DataFrame) -> DataFrame:
    """The effective updates of each stretch of an id that has any: org_id, id, since, until, `updates`.

    `updates` holds only the last update of each field in the stretch: it is later than any other that reaches the same
    row. So a hundred thousand updates of an id weigh as much as one.
    """
    stretch = ("org_id", "id", "since", "until")
    set_fields = timeline.where(F.col("kind") == UPDATED).select(
        *stretch, "time", "seq", F.explode("fields").alias("field", "value")
    )
    last = set_fields.groupBy(*stretch, "field").agg(F.max(F.struct("time", "seq", "value")).alias("last"))
    update = F.struct("last.time", "last.seq", "last.value", "field")
    return last.groupBy(*stretch).agg(F.collect_list(update).alias("updates"))
