"""Reads the rows of a table that changed since a position, each once, in its current state.

The last change of a row is identified by the number of its last mutation batch, otherwise by its ingest batch. A row is
returned if a notification after the position announces that batch. Data is committed before its notification, so a
later snapshot contains all announced rows. A row that is changed again by a batch without notification yet is returned
once that batch is announced. So every changed row is returned, and no state twice, during concurrent streams and
mutation batches.

Delta's change data feed is the alternative. It is exact to the commit, but each write adds change files, and the feed
returns every change of a row instead of its last state. It requires the table property `delta.enableChangeDataFeed`
from before the first change.

A reader that writes a Delta table stores its position in the commit of its output (`commit_position`). Both are atomic:
a killed reader resumes exactly at the end of its table.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from deltaworks.control import paths
from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ConfigError, ContractError
from deltaworks.mutations.notifications import NotifiedChanges, all_notified_changes, notified_changes
from deltaworks.specs.base import nearest_names_hint
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.mutation import DELETED_COLUMN, MUTATION_COLUMN, ORG_COLUMN
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from deltaworks.specs.table import TableSpec
from deltaworks.tables.changes import ChangePosition, ChangeSource, last_committed_position
from deltaworks.tables.lake import Lake
from deltaworks.tables.spark_session import USER_METADATA, override_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The result of a read. `rows` are lazy and fixed to `data_version`; the next read starts at `position`.

    The full table at that version, without deleted rows, is `snapshot`, for recomputing aggregates. If no change was
    notified, `is_empty` is set, though the position may have advanced. Before the table exists both DataFrames are
    empty and `data_version` is None.
    """

    rows: DataFrame
    snapshot: DataFrame
    position: ChangePosition
    data_version: int | None
    is_empty: bool


@dataclass(frozen=True, slots=True)
class TrackedTable:
    """A table whose changes are read, and its notification table (None without one)."""

    spark: SparkSession
    lake: Lake
    pipeline: PipelineSpec
    data: TableSpec
    notification_table: TableSpec | None

    def key(self, table: TableSpec) -> str:
        """Returns the lake key of the data table or the notification table."""
        return paths.table(self.pipeline.pipeline, table.name)

    def rows_at(self, version: int | None) -> DataFrame:
        """Returns the data at a version, including deleted rows; empty before the table exists."""
        if version is None:
            ddl = ", ".join(f"`{name}` {kind}" for name, kind in self.data.column_types().items())
            return self.spark.createDataFrame([], ddl)
        uri = self.lake.storage.spark_uri(self.key(self.data))
        return self.spark.read.format("delta").option("versionAsOf", version).load(uri)

    def without_deleted(self, rows: DataFrame) -> DataFrame:
        """Returns the rows without those deleted by requests."""
        if self.data.mutable is None:
            return rows
        return rows.where(~F.coalesce(F.col(DELETED_COLUMN), F.lit(False)))


def tracked_table(spark: SparkSession, catalog: Catalog, table: str) -> TrackedTable:
    """Returns the table `<pipeline>.<table>` and its notification table.

    Raises:
        ConfigError: PIPELINE_UNKNOWN, TABLE_UNKNOWN.
    """
    pipeline, _, name = table.partition(".")
    spec = catalog.pipeline(pipeline)
    by_name = {data.name: data for data in spec.event_tables}
    if name not in by_name:
        raise ConfigError(
            "TABLE_UNKNOWN",
            f"There is no bronze table {table!r}.",
            hint=f"Name it as <pipeline>.<table>. {nearest_names_hint([name], by_name, prefix=f'{pipeline} has')}",
        )
    notification_tables = [
        other for other in spec.tables if other.announces is not None and other.announces.table == name
    ]
    return TrackedTable(
        spark,
        Lake(catalog.environment.lake),
        spec,
        by_name[name],
        notification_tables[0] if notification_tables else None,
    )


def next_position(
    table: DeltaTable | None, since: ChangePosition | None, source: ChangeSource
) -> tuple[ChangePosition, int | None]:
    """Returns the newest position, and the version after which to read (None: read everything).

    Raises:
        ContractError: CHANGES_STARTED_OVER if the position belongs to another table.
    """
    if table is None:
        return since or ChangePosition(source=source, table_id="", version=-1), None
    newest = ChangePosition(source=source, table_id=str(table.metadata().id), version=table.version())
    if since is None or not since.table_id:
        return newest, None
    if (since.source, since.table_id) != (newest.source, newest.table_id) or since.version > newest.version:
        raise ContractError(
            "CHANGES_STARTED_OVER",
            f"The position {since} does not belong to {table.table_uri} at version {newest.version}: the table was "
            "recreated or restored, or the position is from another table.",
        )
    return newest, since.version


__all__ = ["Changes", "commit_position", "last_committed_position", "read_changes"]

#: Maximum number of organisations in a pruning condition. With more, the query is restricted by batches only.
_MAX_LISTED_ORGANISATIONS = 1_000
_BATCH_COLUMN = "_batch_id"
_FEED_PROPERTY = "delta.enableChangeDataFeed"
#: The row key, which no change alters.
_ROW_KEY = ("_batch_id", "_seq", "_position")
_FEED_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")


def read_changes(
    spark: SparkSession,
    table: str,
    since: ChangePosition | str | None = None,
    *,
    tombstones: bool = False,
    source: ChangeSource = "notifications",
    catalog: Catalog | None = None,
) -> Changes:
    """Returns the rows of `table` inserted or changed since a position, each once and in its current state.

    A reader is exact if it stores `position` in the same transaction as its output: after a crash it reads the same
    rows again. Reads only; any number of readers may run concurrently with streams, mutation batches and OPTIMIZE.

    Args:
        table: `<pipeline>.<table>`, a table that has a notification table.
        since: the end position of an earlier read, or None to read everything.
        tombstones: include deleted rows, with `_deleted` true, while requests may still restore them
            (`mutations.purge_after_days`).
        source: `change_feed` reads the table's Delta change data feed instead, which must be enabled.
        catalog: by default the catalog of this project and environment.

    Raises:
        ConfigError: PIPELINE_UNKNOWN, TABLE_UNKNOWN, CHANGES_NOT_ANNOUNCED, CHANGES_POSITION_UNKNOWN, CHANGE_FEED_OFF.
        ContractError: CHANGES_EXPIRED, CHANGES_STARTED_OVER.
    """
    tracked = tracked_table(spark, catalog or load_catalog(skip_invalid=True), table)
    position = ChangePosition.parse(since) if isinstance(since, str) else since
    if source == "change_feed":
        return _read_feed(tracked, position, tombstones=tombstones)
    return _read_notified(tracked, position, tombstones=tombstones)


def _read_notified(tracked: TrackedTable, since: ChangePosition | None, *, tombstones: bool) -> Changes:
    if tracked.notification_table is None:
        raise ConfigError(
            "CHANGES_NOT_ANNOUNCED",
            f"No table of {tracked.pipeline.pipeline} announces {tracked.data.name!r}, so its changes are unknown.",
        )
    key, lake = tracked.key(tracked.notification_table), tracked.lake
    notification_snapshot = lake.open(key)
    position, after = next_position(notification_snapshot, since, "notifications")
    everything = after is None
    if notification_snapshot is None:
        notified = NotifiedChanges()
    elif after is None:
        notified = all_notified_changes(lake, key, tracked.notification_table, notification_snapshot)
    else:
        notified = notified_changes(lake, key, tracked.notification_table, after=after, up_to=position.version)
    # Opened after the notifications: data is committed before them.
    data = lake.open(tracked.key(tracked.data))
    version = data.version() if data is not None else None
    snapshot = tracked.rows_at(version)
    changed = snapshot.where(
        _last_change_condition(tracked, notified, everything=everything) & _pruning_condition(notified, everything)
    )
    without_deleted = tracked.without_deleted(snapshot)
    return Changes(
        rows=changed if tombstones else tracked.without_deleted(changed),
        snapshot=without_deleted,
        position=position,
        data_version=version,
        is_empty=not notified,
    )


def _last_change_condition(tracked: TrackedTable, notified: NotifiedChanges, *, everything: bool) -> Column:
    """Returns the condition that selects rows whose last change has been notified."""
    batches = {kind: _ranges(numbers) for kind, numbers in notified.batches.items()}
    if everything:
        # Reading everything includes rows older than the first notification.
        batches = {kind: [(None, ranges[-1][1])] for kind, ranges in batches.items()}
    has_notified_batch = _in_ranges(F.col(_BATCH_COLUMN), batches.get("stream", []))
    if tracked.data.mutable is None:
        return has_notified_batch
    has_notified_mutation = _in_ranges(F.col(MUTATION_COLUMN), batches.get("mutation", []))
    return (F.col(MUTATION_COLUMN).isNull() & has_notified_batch) | has_notified_mutation


def _pruning_condition(notified: NotifiedChanges, everything: bool) -> Column:
    """Returns the organisations and dates of the notifications as a condition, so that files can be skipped."""
    bounds = F.lit(True)
    if everything:
        return bounds
    if notified.orgs is not None and len(notified.orgs) <= _MAX_LISTED_ORGANISATIONS:
        bounds &= F.col(ORG_COLUMN).isin(sorted(notified.orgs))
    for name, dates in notified.dates.items():
        values = sorted(date for date in dates or () if date is not None)
        if dates is None or not values:
            continue
        within = F.col(name).between(_date(values[0]), _date(values[-1]))
        bounds &= (within | F.col(name).isNull()) if None in dates else within
    return bounds


def _date(value: dt.date) -> Column:
    return F.lit(value)


def _ranges(numbers: Iterable[int]) -> list[tuple[int | None, int]]:
    """Returns numbers as inclusive ranges. Batch numbers are mostly consecutive, so there are few ranges."""
    ranges: list[tuple[int | None, int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def _in_ranges(column: Column, ranges: Sequence[tuple[int | None, int]]) -> Column:
    """Returns the condition that a column is in one of the ranges, in a form that allows file skipping."""
    condition = F.lit(False)
    for minimum, maximum in ranges:
        condition |= (column <= maximum) if minimum is None else column.between(minimum, maximum)
    return condition


def _read_feed(tracked: TrackedTable, since: ChangePosition | None, *, tombstones: bool) -> Changes:
    table = tracked.lake.open(tracked.key(tracked.data))
    position, after = next_position(table, since, "change_feed")
    if table is not None and table.metadata().configuration.get(_FEED_PROPERTY) != "true":
        raise ConfigError(
            "CHANGE_FEED_OFF",
            f"{table.table_uri} has no change data feed.",
            hint=f"ALTER TABLE ... SET TBLPROPERTIES ('{_FEED_PROPERTY}' = 'true') while nothing writes to it, and "
            "read everything once; or read through notifications.",
        )
    version = None if table is None else position.version
    snapshot = tracked.rows_at(version)
    if after is None:
        changed, is_empty = snapshot, table is None
    elif after == position.version:
        changed, is_empty = snapshot.where(F.lit(False)), True
    else:
        changed, is_empty = _latest_feed_rows(tracked, after + 1, position.version), False
    return Changes(
        rows=changed if tombstones else tracked.without_deleted(changed),
        snapshot=tracked.without_deleted(snapshot),
        position=position,
        data_version=version,
        is_empty=is_empty,
    )


def _latest_feed_rows(tracked: TrackedTable, first: int, last: int) -> DataFrame:
    uri = tracked.lake.storage.spark_uri(tracked.key(tracked.data))
    reader = tracked.spark.read.format("delta").option("readChangeFeed", "true")
    try:
        feed = reader.option("startingVersion", first).option("endingVersion", last).load(uri)
    except Exception as error:  # Delta reports missing commits by many exception classes
        raise ContractError(
            "CHANGES_EXPIRED",
            f"The feed of {uri} cannot be read from version {first} to {last}: {str(error).splitlines()[0][:500]}",
            hint="Read everything again with since=None, and poll within the retention of the log and of VACUUM.",
        ) from error
    feed = feed.where(F.col("_change_type") != "update_preimage")
    # A commit that removes a row and adds it again leaves it in the table.
    order = [F.col("_commit_version").desc(), (F.col("_change_type") == "delete").asc()]
    newest = feed.withColumn("_rank", F.row_number().over(Window.partitionBy(*_ROW_KEY).orderBy(*order)))
    rows = newest.where(F.col("_rank") == 1)
    is_delete = F.col("_change_type") == "delete"
    if tracked.data.mutable is None:
        return rows.where(~is_delete).drop("_rank", *_FEED_COLUMNS)
    # A purge removes rows long after a request deleted them. The deletion itself was reported at that time.
    was_already_deleted = is_delete & F.coalesce(F.col(DELETED_COLUMN), F.lit(False))
    deleted = F.when(is_delete, F.lit(True)).otherwise(F.col(DELETED_COLUMN))
    return rows.where(~was_already_deleted).withColumn(DELETED_COLUMN, deleted).drop("_rank", *_FEED_COLUMNS)


@contextmanager
def commit_position(spark: SparkSession, reader: str, position: ChangePosition) -> Iterator[None]:
    """Stores `position` in the commits of this session within the block. Write the complete output in one commit.

    Args:
        reader: the name of the reader, for the history of the table.
    """
    metadata = user_metadata(
        pipeline=reader, batch=position.version, operation="follow_changes", changes_position=position
    )
    with override_settings(spark, {USER_METADATA: metadata}):
        yield
