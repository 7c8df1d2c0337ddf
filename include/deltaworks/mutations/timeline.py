"""What happens under each id, in order: who comes, who leaves, what is set; and which stretch of time it belongs to.

A stretch of an id is the time between two departures from it. Whatever is called by the id at some time within a
stretch leaves with the departure that ends it, so one window over what happens under an id finds, for everything that
comes to it, its next move: no join, and no look at any other id.

The deleted have a place of their own beside each id, from which only an undelete leads back.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from deltaworks.mutations.requests import acting

#: Kinds of an entry, in the order in which entries of one time are met when time runs backwards: what comes to an id
#: at a time stays over the moves of that time, and an update of that time still finds what leaves.
ARRIVAL, DEPARTURE, UPDATED = 0, 1, 2

_PLACE = ("org_id", "id", "gone")


def timeline(requests: DataFrame) -> DataFrame:
    """One row for each thing that happens under an id.

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
