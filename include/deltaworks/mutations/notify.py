"""The notifications of a mutation batch: which rows it changed, and how, for readers who follow changes.

The rows are told by what the batch left in them, its number, so that a batch that is repeated tells the same; the
append carries a transaction, so that it lands once.
"""

from __future__ import annotations

import datetime as dt

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from deltaworks.mutations.differences import KEY
from deltaworks.specs.mutation import (
    DELETED_COLUMN,
    KEYS_PER_NOTIFICATION,
    MUTATION_COLUMN,
    NOTIFICATION_COLUMNS,
    ORG_COLUMN,
)
from deltaworks.specs.table import TableSpec

BATCH_KIND = "mutation"


def notifications(
    changed: DataFrame,
    stretches: DataFrame,
    *,
    data: TableSpec,
    told: TableSpec,
    batch: int,
    at: dt.datetime,
    data_version: int,
) -> DataFrame:
    """The rows of the notification table `told` for the rows of `data` that a batch changed.

    Args:
        changed: rows of the table that bear the batch's number.
        stretches: `differences.changed_stretches`, which know what the rows were before.
        at: when the batch was begun, the same however often it is repeated.
        data_version: the version of the table that has the changes.
    """
    assert data.mutable is not None
    assert told.announces is not None
    columns = [column.name for column in told.columns]
    key = told.announces.key
    rows = _with_change(changed, stretches, data).select(*columns, "change", F.col(key).alias("key"))
    in_order = Window.partitionBy(*columns, "change").orderBy("key")
    numbered = rows.withColumn("part", F.floor((F.row_number().over(in_order) - 1) / KEYS_PER_NOTIFICATION))
    gathered = numbered.groupBy(*columns, "change", "part").agg(F.sort_array(F.collect_list("key")).alias("keys"))
    values: dict[str, Column] = {
        "ingested_at": F.lit(at),
        "ingested_date": F.lit(at.date()),
        "change": F.col("change"),
        "keys": F.col("keys"),
        "batch": F.lit(batch).cast("long"),
        "batch_kind": F.lit(BATCH_KIND),
        "data_version": F.lit(data_version).cast("long"),
    }
    return gathered.select(*columns, *(values[name].alias(name) for name in NOTIFICATION_COLUMNS))


def changed_rows(rows: DataFrame, batch: int) -> DataFrame:
    """The rows a batch left its number in. Files that it did not write are told by their statistics."""
    return rows.where(F.col(MUTATION_COLUMN) == batch)


def _with_change(changed: DataFrame, stretches: DataFrame, data: TableSpec) -> DataFrame:
    """The rows with `change`: what happened to each, from what its stretch came to before and what it is now.

    A row that came since the last batch into a stretch that changed is told like the others of it; into one that did
    not, it was as it arrived before.
    """
    assert data.mutable is not None
    row, stretch = changed.alias("row"), stretches.alias("stretch")
    start, end, time = F.col("stretch.valid_from"), F.col("stretch.valid_to"), F.col("row.event_time")
    same = (
        (F.col(f"row.{ORG_COLUMN}") == F.col("stretch.org_id"))
        & (F.col(f"row.{data.mutable.origin}") == F.col("stretch.id"))
        & (start.isNull() | (time >= start))
        & (end.isNull() | (time < end))
    )
    was_deleted = F.coalesce(F.col("stretch.before.deleted"), F.lit(False))
    was_called = F.coalesce(F.col("stretch.before.final_id"), F.col(f"row.{data.mutable.origin}"))
    change = (
        F.when(F.col(f"row.{DELETED_COLUMN}") & ~was_deleted, "delete")
        .when(~F.col(f"row.{DELETED_COLUMN}") & was_deleted, "insert")
        .when(~F.col(f"row.{data.mutable.id}").eqNullSafe(was_called), "rename")
        .otherwise("update")
    )
    narrow = stretch.select(*KEY, "valid_from", "valid_to", "before").alias("stretch")
    return row.join(narrow, same, "left").select("row.*", change.alias("change"))
