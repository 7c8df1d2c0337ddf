"""Validates requests and builds the timeline of each id.

A request refers to the entity that its id names just before its time. `rename`, `merge`, `delete` and `undelete` move
the entity, `update` sets its fields. Among several moves of one id at one time only the last (by `seq`, then operation
and target) takes effect. All updates take effect, and for each field the last one wins.

A period of an id is the time between two departures of entities from the id. Every entity that has the id within a
period leaves at the end of the period. So one window function over the rows of an id yields the next move of all
arrivals, without a join or reads of other ids. Deleted rows are at a separate location per id, which they leave only by
an undelete.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from deltaworks.specs.mutation import (
    DELETE,
    MOVE_OPERATIONS,
    OPERATIONS,
    RENAME_OPERATIONS,
    REQUEST_COLUMNS,
    UNDELETE,
    UPDATE,
)
from deltaworks.tables.spark_session import override_settings

#: Input schema of `resolve` as DDL. A request takes effect at `time`; requests of the same time are ordered by `seq`,
#: null first. Further columns are ignored.
REQUEST_SCHEMA = ", ".join(
    f"{name} {kind}" for name, kind in {**REQUEST_COLUMNS, "time": "timestamp"}.items() if name != "name"
)
_KEY = ("org_id", "id", "time")

#: Up to this number of requests, compiling and scheduling queries takes longer than computing the result.
SMALL_BATCH_REQUESTS = 20_000

#: Checkpointed frames have no statistics, so Spark assumes that they are large and builds a Bloom filter of 1 MB for
#: every join key, which it ships with every task: the last join takes three times as long.
_BASE_SETTINGS = {"spark.sql.optimizer.runtime.bloomFilter.enabled": "false"}
_SMALL_BATCH_SETTINGS = {
    # One job per query instead of per stage, one task per stage, interpreted expressions.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def invalid_reason() -> Column:
    """Returns the reason why a request cannot take effect; null for a valid one.

    Reasons: `UNKNOWN_OPERATION`, `INCOMPLETE` (no organisation, id or time, or a required new id is missing) and
    `NO_FIELDS` (of an update).
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
    """Returns the requests that take effect: the last of several moves of one id at one time, without moves to the same
    id.

    Excludes requests that only change the name mapping (`rename_name`).

    Columns: org_id, id, time, seq, op, fields, `target` (the id it moves to, null for an update), and whether it moves
    out of (`revives`) or into (`removes`) the location of deleted rows.
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
    """Applies Spark settings within a block that resolves requests and materialises the result; restores them
    afterwards.

    The result does not depend on them.
    """
    with override_settings(
        session, {**_BASE_SETTINGS, **(_SMALL_BATCH_SETTINGS if request_count <= SMALL_BATCH_REQUESTS else {})}
    ):
        yield


#: Kinds of rows in the order of a backwards scan over equal times: an entity that arrives is not moved by a move of the
#: same time, and an update of the same time still applies to departing entities.
ARRIVAL, DEPARTURE, UPDATED = 0, 1, 2

_LOCATION = ("org_id", "id", "deleted")
#: An array of updates, one per field.
UPDATES = "array<struct<time:timestamp,seq:bigint,value:string,field:string>>"


def timeline(requests: DataFrame) -> DataFrame:
    """Returns one row per arrival, departure and update of an id.

    Columns: org_id, `id` and `deleted` (the location), time, `kind`, seq, op, fields (of an update), `origin` (of an
    arrival: the id it left at this time), `since` and `until` (the start and end of the period, both departures; null
    without one).
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
    # Ordered backwards, because a window frame to the end of a partition costs the square of its rows.
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
    """Merges two maps of fields. Values of the later map win, even null."""
    remaining = F.map_filter(earlier, lambda name, _: ~F.map_contains_key(later, name))
    return (
        F.when(F.size(later) == 0, earlier).when(F.size(earlier) == 0, later).otherwise(F.map_concat(remaining, later))
    )


def with_later_updates(frame: DataFrame, time: Column) -> DataFrame:
    """Adds the fields that `updates` set after a time. A null time precedes all updates.

    Adds `set_fields`, and `last_update` (time and sequence of the last update, null without one).
    """
    # In separate columns: an array expression used twice is computed twice, and shipped to tasks twice.
    later = frame.withColumn("met", F.filter("updates", lambda update: time.isNull() | (update["time"] > time)))
    fields = F.map_from_entries(F.transform("met", lambda update: F.struct(update["field"], update["value"])))
    last = F.array_max(F.transform("met", lambda update: request_order(update["time"], update["seq"])))
    return later.withColumns({"set_fields": fields, "last_update": last}).drop("met")


def request_order(time: Column, seq: Column) -> Column:
    """Returns time and sequence as one value that orders requests; a missing sequence comes first."""
    return F.struct(time.alias("time"), seq.alias("seq"))


def last_updates(timeline: DataFrame) -> DataFrame:
    """Returns the effective updates per period of an id: org_id, id, since, until, `updates`.

    For each field `updates` contains only the last update of the period, which overrides all earlier ones. So a hundred
    thousand updates of an id cost as much as one.
    """
    period = ("org_id", "id", "since", "until")
    set_fields = timeline.where(F.col("kind") == UPDATED).select(
        *period, "time", "seq", F.explode("fields").alias("field", "value")
    )
    last = set_fields.groupBy(*period, "field").agg(F.max(F.struct("time", "seq", "value")).alias("last"))
    update = F.struct("last.time", "last.seq", "last.value", "field")
    return last.groupBy(*period).agg(F.collect_list(update).alias("updates"))
