"""Writes the notifications of a mutation batch, and reads notifications between two versions of their table.

A batch finds its changed rows by their batch number, so a repeated batch writes the same notifications. The append
carries a transaction, so it commits once.

Readers use the Delta log: the statistics of a notification file contain its batch, and its partition the organisation,
so a poll reads one log entry per commit. Files with insufficient statistics are opened.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from deltaworks.errors import ContractError
from deltaworks.mutations.bounds import mutable_spec
from deltaworks.mutations.interval_diff import KEY
from deltaworks.specs.mutation import (
    DELETED_COLUMN,
    KEYS_PER_NOTIFICATION,
    MUTATION_COLUMN,
    NOTIFICATION_COLUMNS,
    ORG_COLUMN,
)
from deltaworks.specs.table import TableSpec
from deltaworks.tables.files import read_parquet
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import Action, read_commits

BATCH, KIND = "batch", "batch_kind"
BATCH_KIND = "mutation"


def notifications(
    changed: DataFrame,
    periods: DataFrame,
    *,
    data_table: TableSpec,
    notification_table: TableSpec,
    key: str,
    batch: int,
    at: dt.datetime,
    data_version: int,
) -> DataFrame:
    """Returns the rows of `notification_table` for the rows of `data_table` that a batch changed.

    Args:
        changed: rows of `data_table` that carry the batch number.
        periods: `interval_diff.changed_periods`, with the values before the batch.
        key: the column of `data_table` whose values the notifications list.
        at: time when the batch was planned; identical in every attempt.
        data_version: the version of `data_table` with the changes.
    """
    columns = [column.name for column in notification_table.columns]
    rows = _with_change(changed, periods, data_table).select(*columns, "change", F.col(key).alias("key"))
    key_order = Window.partitionBy(*columns, "change").orderBy("key")
    numbered = rows.withColumn("part", F.floor((F.row_number().over(key_order) - 1) / KEYS_PER_NOTIFICATION))
    grouped = numbered.groupBy(*columns, "change", "part").agg(F.sort_array(F.collect_list("key")).alias("keys"))
    values: dict[str, Column] = {
        "ingested_at": F.lit(at),
        "ingested_date": F.lit(at.date()),
        "change": F.col("change"),
        "keys": F.col("keys"),
        "batch": F.lit(batch).cast("long"),
        "batch_kind": F.lit(BATCH_KIND),
        "data_version": F.lit(data_version).cast("long"),
    }
    return grouped.select(*columns, *(values[name].alias(name) for name in NOTIFICATION_COLUMNS))


def changed_rows(rows: DataFrame, batch: int) -> DataFrame:
    """Returns the rows that carry a batch number. Files without such rows are skipped by their statistics."""
    return rows.where(F.col(MUTATION_COLUMN) == batch)


def _with_change(changed: DataFrame, periods: DataFrame, data_table: TableSpec) -> DataFrame:
    """Adds the column `change`, the kind of change, from the values before the batch and now.

    A row that arrived after the last batch gets the same kind as the other rows of its changed period. In an unchanged
    period its previous values are the original ones.
    """
    mutable = mutable_spec(data_table)
    row, period = changed.alias("row"), periods.alias("period")
    start, end, time = F.col("period.valid_from"), F.col("period.valid_to"), F.col("row.event_time")
    is_same_period = (
        (F.col(f"row.{ORG_COLUMN}") == F.col("period.org_id"))
        & (F.col(f"row.{mutable.origin}") == F.col("period.id"))
        & (start.isNull() | (time >= start))
        & (end.isNull() | (time < end))
    )
    was_deleted = F.coalesce(F.col("period.before.deleted"), F.lit(False))
    previous_id = F.coalesce(F.col("period.before.final_id"), F.col(f"row.{mutable.origin}"))
    change = (
        F.when(F.col(f"row.{DELETED_COLUMN}") & ~was_deleted, "delete")
        .when(~F.col(f"row.{DELETED_COLUMN}") & was_deleted, "insert")
        .when(~F.col(f"row.{mutable.id}").eqNullSafe(previous_id), "rename")
        .otherwise("update")
    )
    narrow = period.select(*KEY, "valid_from", "valid_to", "before").alias("period")
    return row.join(narrow, is_same_period, "left").select("row.*", change.alias("change"))


@dataclass(slots=True)
class NotifiedChanges:
    """The notified batches by kind (`stream`, `mutation`), and the organisations and dates of the changed rows.

    `orgs` and entries of `dates` are None if a file lacks statistics for them. A date of None stands for rows without a
    date.
    """

    batches: dict[str, set[int]] = field(default_factory=dict)
    orgs: set[str] | None = field(default_factory=set)
    dates: dict[str, set[dt.date | None] | None] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.batches)


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    partition: Mapping[str, str | None]
    statistics: Mapping[str, Any]


def notified_changes(lake: Lake, key: str, notification_table: TableSpec, *, after: int, up_to: int) -> NotifiedChanges:
    """Returns the notifications after version `after`, up to `up_to`, of the notification table at `key`.

    Raises:
        ContractError: CHANGES_EXPIRED, CHANGES_STARTED_OVER.
    """
    return _combine_files(lake, key, notification_table, _new_files(lake, key, after, up_to))


def all_notified_changes(lake: Lake, key: str, notification_table: TableSpec, snapshot: DeltaTable) -> NotifiedChanges:
    """Returns all notifications in a snapshot of the notification table."""
    files = [json.loads(text) for text in _snapshot_actions(snapshot)]
    return _combine_files(lake, key, notification_table, (_parse_file(action) for action in files))


def _new_files(lake: Lake, key: str, after: int, up_to: int) -> Iterator[_File]:
    """Yields files with new notifications; skips files written by OPTIMIZE."""
    for version, actions in read_commits(lake, key, range(after + 1, up_to + 1)):
        if actions is None:
            raise ContractError(
                "CHANGES_EXPIRED",
                f"The log of {lake.storage.uri(key)} no longer has version {version}, so its changes are unknown.",
                hint="Read everything again with since=None, and poll more often than the log is kept "
                "(delta.logRetentionDuration).",
            )
        for action in actions:
            removed = action.get("remove")
            if removed is not None and removed.get("dataChange", True):
                raise ContractError(
                    "CHANGES_STARTED_OVER",
                    f"Version {version} of {lake.storage.uri(key)} removes notifications: the pipeline was started "
                    "over or the table restored, so rows that were read before may have changed.",
                )
            if action.get("add") is not None and action["add"].get("dataChange", True):
                yield _parse_file(action["add"])


def _snapshot_actions(table: DeltaTable) -> Iterator[str]:
    """Yields the add actions of a snapshot in the format of the log."""
    adds = pa.table(table.get_add_actions(flatten=False))
    for row in adds.to_pylist():
        statistics = {"minValues": row.get("min"), "maxValues": row.get("max"), "nullCount": row.get("null_count")}
        action = {
            "path": row["path"],
            "partitionValues": row.get("partition") or {},
            "stats": json.dumps(statistics, default=str),
        }
        yield json.dumps(action, default=str)


def _parse_file(action: Action) -> _File:
    text = action.get("stats")
    return _File(unquote(action["path"]), action.get("partitionValues") or {}, json.loads(text) if text else {})


def _combine_files(lake: Lake, key: str, notification_table: TableSpec, files: Iterable[_File]) -> NotifiedChanges:
    dates = [column.name for column in notification_table.columns if column.type == "date"]
    notified = NotifiedChanges(dates={name: set() for name in dates})
    for file in files:
        kind, batch = _single_value(file, KIND), _single_value(file, BATCH)
        if isinstance(kind, str) and isinstance(batch, int):
            notified.batches.setdefault(kind, set()).add(batch)
        else:
            for kind, batch in _read_batches(lake, key, file):
                notified.batches.setdefault(kind, set()).add(batch)
        if notified.orgs is not None:
            org = file.partition.get(ORG_COLUMN)
            notified.orgs = None if org is None else notified.orgs | {org}
        for name in dates:
            dates_so_far = notified.dates[name]
            bounds = _date_bounds(file, name)
            notified.dates[name] = None if dates_so_far is None or bounds is None else dates_so_far | bounds
    return notified


def _single_value(file: _File, column: str) -> Any:
    """Returns the value of a column if the file's statistics show that all rows have the same one, else None."""
    minimum, maximum = ((file.statistics.get(bound) or {}).get(column) for bound in ("minValues", "maxValues"))
    return minimum if minimum == maximum and not (file.statistics.get("nullCount") or {}).get(column) else None


def _date_bounds(file: _File, column: str) -> set[dt.date | None] | None:
    """Returns the minimum and maximum date of a file, and None if rows lack one; None without statistics."""
    if column in file.partition:
        value = file.partition[column]
        return {None if value is None else dt.date.fromisoformat(value)}
    minimum, maximum = ((file.statistics.get(bound) or {}).get(column) for bound in ("minValues", "maxValues"))
    nulls = (file.statistics.get("nullCount") or {}).get(column)
    if minimum is None or maximum is None or nulls is None:
        return None
    return {dt.date.fromisoformat(minimum), dt.date.fromisoformat(maximum), *([None] if nulls else [])}


def _read_batches(lake: Lake, key: str, file: _File) -> list[tuple[str, int]]:
    """Reads the kind of change and the batch number of each row of a file.

    Raises:
        ContractError: CHANGES_EXPIRED if VACUUM has removed it.
    """
    path = f"{arrow_path(lake.storage, key)}/{file.path}"
    try:
        with lake.filesystem.open_input_file(path) as source:
            rows = read_parquet(source, columns=[KIND, BATCH])
    except FileNotFoundError as error:
        raise ContractError(
            "CHANGES_EXPIRED",
            f"{lake.storage.uri(key)}/{file.path} no longer exists: VACUUM removed it after it was compacted.",
            hint="Read everything again with since=None, and poll more often than VACUUM's retention.",
        ) from error
    rows = rows.filter(pc.and_(pc.is_valid(rows.column(KIND)), pc.is_valid(rows.column(BATCH))))
    pairs = rows.group_by([KIND, BATCH]).aggregate([])
    return list(zip(pairs.column(KIND).to_pylist(), pairs.column(BATCH).to_pylist(), strict=True))
