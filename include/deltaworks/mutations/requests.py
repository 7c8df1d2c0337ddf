"""Requests as they are resolved: their schema, which of them are effective, and the timeline of each id they make.

A request refers to what its id names just before its time. `rename`, `merge`, `delete` and `undelete` move that,
`update` sets fields of it. Of several moves of one id at one time only the last one (by `seq`, then by operation and
target) takes effect; all updates do, and for each field the last one counts.

A period of an id is the time between two departures from it. Whatever has the id at some time within a period leaves
with the departure that ends it. So one window over the entries of an id yields the next move of everything that arrives
there, without a join and without reading any other id. Deleted rows have a place of their own beside each id, from
which only an undelete leads back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from deltaworks.specs.mutation import OPERATIONS, REQUEST_COLUMNS
from deltaworks.tables.spark.session import override_settings

#: The input of `resolve`, as a DDL string. `time` is when a request takes effect; `seq` orders requests of one time, a
#: missing one first. Further columns are ignored.
REQUEST_SCHEMA = ", ".join(
    f"{name} {kind}" for name, kind in {**REQUEST_COLUMNS, "time": "timestamp"}.items() if name != "name"
)
#: Operations that move what an id names to another id,
RENAME_OPERATIONS = ("rename", "merge")
#: those that move it to the place of deleted rows of the id, and back,
DELETE, UNDELETE = "delete", "undelete"
#: and the one that leaves it in place.
UPDATE = "update"
MOVE_OPERATIONS = (*RENAME_OPERATIONS, DELETE, UNDELETE)

_KEY = ("org_id", "id", "time")

#: With at most this many requests, a process that has just started compiles and schedules longer than it computes.
SMALL_BATCH_REQUESTS = 20_000

#: Frames kept on the executors have no statistics, so Spark takes them for large and builds Bloom filters of a megabyte
#: for every key of a join, which it then ships with every task: three times the seconds of the last join.
_BASE_SETTINGS = {"spark.sql.optimizer.runtime.bloomFilter.enabled": "false"}
_SMALL_BATCH_SETTINGS = {
    # One job a query and not one a stage, one task a stage, and expressions that are interpreted and not compiled.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def invalid_reason() -> Column:
    """Why a request cannot take effect; null for one that can.

    Reasons: `UNKNOWN_OPERATION`, `INCOMPLETE` (no organisation, id or time, or no new id where one is needed) and
    `NO_FIELDS` of an update.
    """
    incomplete = F.col("org_id").isNull() | F.col("id").isNull() | F.col("time").isNull()
    without_target = F.col("op").isin(*RENAME_OPERATIONS) & F.col("new_id").isNull()
    without_fields = (F.col("op") == UPDATE) & (F.coalesce(F.size("fields"), F.lit(0)) <= 0)
    is_operation = F.coalesce(F.col("op").isin(*OPERATIONS), F.lit(False))
    return (
        F.when(~is_operation, "UNKNOWN_OPERATION")
        .when(incomplete | without_target, "INCOMPLETE")
        .when(without_fields, "NO_FIELDS")
    )


def effective_requests(requests: DataFrame) -> DataFrame:
    """The effective requests: of the moves of one id at one time the last, without those that lead nowhere.

    Requests for the mapping table alone (`rename_name`) are excluded.

    Columns: org_id, id, time, seq, op, fields, `target` (the id it moves to, null for an update), and whether it moves
    out of (`revives`) or into (`removes`) the place of the deleted.
    """
    op = F.col("op")
    target = F.when(op.isin(*RENAME_OPERATIONS), F.col("new_id")).when(op.isin(DELETE, UNDELETE), F.col("id"))
    usable = requests.where(op.isin(*MOVE_OPERATIONS, UPDATE) & invalid_reason().isNull()).select(
        *_KEY,
        "seq",
        "op",
        F.when(op == UPDATE, F.col("fields")).alias("fields"),
        target.alias("target"),
        (op == UNDELETE).alias("revives"),
        (op == DELETE).alias("removes"),
    )
    is_move = F.col("target").isNotNull()
    precedence = Window.partitionBy(*_KEY, is_move).orderBy(
        F.col("seq").desc_nulls_last(), op.desc(), F.col("target").desc_nulls_last()
    )
    ranked = usable.withColumn("rank", F.row_number().over(precedence))
    is_noop = op.isin(*RENAME_OPERATIONS) & (F.col("target") == F.col("id"))
    return ranked.where(~is_move | ((F.col("rank") == 1) & ~is_noop)).drop("rank")


@contextmanager
def resolve_settings(session: SparkSession, *, request_count: int) -> Iterator[None]:
    """Spark settings for a block that resolves `requests` many of them and materialises the result; restored after it.

    The result does not depend on them.
    """
    with override_settings(
        session, {**_BASE_SETTINGS, **(_SMALL_BATCH_SETTINGS if request_count <= SMALL_BATCH_REQUESTS else {})}
    ):
        yield


#: Kinds of an entry, in the order in which entries of one time are met when time runs backwards: what arrives at an
#: id at a time stays over the moves of that time, and an update of that time still applies to what leaves.
ARRIVAL, DEPARTURE, UPDATED = 0, 1, 2

_LOCATION = ("org_id", "id", "deleted")
#: An array of updates, of each field one.
UPDATES = "array<struct<time:timestamp,seq:bigint,value:string,field:string>>"


def timeline(requests: DataFrame) -> DataFrame:
    """One row for each arrival, departure and update of an id.

    Columns: org_id, `id` and `deleted` (the place), time, `kind`, seq, op, fields (of an update), `origin` (of an arrival:
    the id it left at this time), `since` and `until` (the period: the departures before and at its end, null where
    there is none).
    """
    org, time, seq, op = (F.col(name) for name in ("org_id", "time", "seq", "op"))

    def entry(place: Column, deleted: Column, kind: int, fields: Column, origin: Column) -> Column:
        return F.struct(
            org.alias("org_id"),
            place.alias("id"),
            deleted.alias("deleted"),
            time.alias("time"),
            F.lit(kind).alias("kind"),
            seq.alias("seq"),
            op.alias("op"),
            fields.alias("fields"),
            origin.alias("origin"),
        )

    no_fields, no_origin = F.lit(None).cast("map<string,string>"), F.lit(None).cast("string")
    departure = entry(F.col("id"), F.col("revives"), DEPARTURE, no_fields, no_origin)
    arrival = entry(F.col("target"), F.col("removes"), ARRIVAL, no_fields, F.col("id"))
    update = entry(F.col("id"), F.lit(False), UPDATED, F.col("fields"), no_origin)
    entries = F.when(F.col("target").isNull(), F.array(update)).otherwise(F.array(departure, arrival))
    exploded = effective_requests(requests).select(F.inline(entries))
    departure_time = F.when(F.col("kind") == DEPARTURE, F.col("time"))
    # Time runs backwards: a frame that reaches to the end of a partition costs the square of its rows.
    later = Window.partitionBy(*_LOCATION).orderBy(F.col("time").desc(), F.col("kind").asc())
    earlier = Window.partitionBy(*_LOCATION).orderBy(F.col("time").asc(), F.col("kind").desc())
    return exploded.withColumns(
        {
            "until": F.last(departure_time, ignorenulls=True).over(
                later.rowsBetween(Window.unboundedPreceding, Window.currentRow)
            ),
            "since": F.last(departure_time, ignorenulls=True).over(earlier.rowsBetween(Window.unboundedPreceding, -1)),
        }
    )


def override_fields(earlier: Column, later: Column) -> Column:
    """Merge two maps of fields; what the later one sets, even to null, wins."""
    remaining = F.map_filter(earlier, lambda name, _: ~F.map_contains_key(later, name))
    return (
        F.when(F.size(later) == 0, earlier).when(F.size(earlier) == 0, later).otherwise(F.map_concat(remaining, later))
    )


def with_later_updates(frame: DataFrame, time: Column) -> DataFrame:
    """Add the fields that `updates` set on rows that came to their period at a time; a null time precedes them all.

    Adds `set_fields`, and `last_update` (time and sequence of the last of them, null where there is none).
    """
    # In steps, each a column that the next one names: an array expression that is written twice is computed twice, and
    # shipped to tasks twice.
    later = frame.withColumn("met", F.filter("updates", lambda update: time.isNull() | (update["time"] > time)))
    fields = F.map_from_entries(F.transform("met", lambda update: F.struct(update["field"], update["value"])))
    last = F.array_max(F.transform("met", lambda update: request_order(update["time"], update["seq"])))
    return later.withColumns({"set_fields": fields, "last_update": last}).drop("met")


def request_order(time: Column, seq: Column) -> Column:
    """A time and a sequence as one value that orders requests; a missing sequence is before all others."""
    return F.struct(time.alias("time"), seq.alias("seq"))


def last_updates(timeline: DataFrame) -> DataFrame:
    """The effective updates of each period of an id that has any: org_id, id, since, until, `updates`.

    `updates` holds only the last update of each field in the period: it is later than any other that reaches the same
    row. So a hundred thousand updates of an id weigh as much as one.
    """
    period = ("org_id", "id", "since", "until")
    set_fields = timeline.where(F.col("kind") == UPDATED).select(
        *period, "time", "seq", F.explode("fields").alias("field", "value")
    )
    last = set_fields.groupBy(*period, "field").agg(F.max(F.struct("time", "seq", "value")).alias("last"))
    update = F.struct("last.time", "last.seq", "last.value", "field")
    return last.groupBy(*period).agg(F.collect_list(update).alias("updates"))
