"""Reads what changed in a table since a position: each changed row once, as it is now.

A row belongs to its last change: the mutation batch it bears or, where none has touched it, the batch it came with. It
is read when that change was notified after the position. Data is committed before its notification, so a snapshot of
the data that is taken after one of the notifications has all that these tell of; a row that has been changed again
since, by a batch that has not been notified yet, comes with that notification and not before. So every row a reader has
to know of comes, and none comes twice in one state, whatever a stream and a mutation batch are doing meanwhile.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaworks.control import paths
from deltaworks.errors import ConfigError, ContractError
from deltaworks.mutations.notified import Notified, notified_between, notified_ever
from deltaworks.specs.catalog import Catalog, load_catalog
from deltaworks.specs.mutation import DELETED_COLUMN, MUTATION_COLUMN, ORG_COLUMN
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import TableSpec
from deltaworks.tables.changes import ChangePosition, Through
from deltaworks.tables.lake import Lake

#: More organisations than these are not listed in a query: the batches bound it too.
_LISTED_ORGS = 1_000
_BATCH_COLUMN = "_batch_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What changed. `rows` are lazy and stay those of `data_version`; `position` is where the next read begins.

    `snapshot` is the whole table at that version, deleted rows left out: what a reader recounts its figures from.
    `nothing` says that no change was told of; the position may have moved all the same. Where the table does not exist
    yet there are neither rows nor a snapshot, and `data_version` is None.
    """

    rows: DataFrame
    snapshot: DataFrame
    position: ChangePosition
    data_version: int | None
    nothing: bool


@dataclass(frozen=True, slots=True)
class FollowedTable:
    """A table whose changes are read. `told` is None where no notification table announces it."""

    spark: SparkSession
    lake: Lake
    pipeline: PipelineSpec
    data: TableSpec
    told: TableSpec | None

    def key(self, table: TableSpec) -> str:
        """Where one of the two is."""
        return paths.table(self.pipeline.pipeline, table.name)

    def at(self, version: int | None) -> DataFrame:
        """The data at a version, deleted rows too; no rows where there is no table yet."""
        if version is None:
            ddl = ", ".join(f"`{name}` {kind}" for name, kind in self.data.column_types().items())
            return self.spark.createDataFrame([], ddl)
        uri = self.lake.storage.spark_uri(self.key(self.data))
        return self.spark.read.format("delta").option("versionAsOf", version).load(uri)

    def living(self, rows: DataFrame) -> DataFrame:
        """Without the rows that requests deleted."""
        if self.data.mutable is None:
            return rows
        return rows.where(~F.coalesce(F.col(DELETED_COLUMN), F.lit(False)))


def read_changes(
    spark: SparkSession,
    table: str,
    since: ChangePosition | str | None = None,
    *,
    tombstones: bool = False,
    through: Through = "notifications",
    catalog: Catalog | None = None,
) -> Changes:
    """The rows of `table` that were inserted or changed since a position, each once and as it is now.

    A reader is exact when it keeps `position` in the same transaction as what it made of the rows: after a crash it
    reads the same rows again, since nothing else moves its position. Reads only; any number of readers at once, beside
    a stream, mutation batches and OPTIMIZE.

    Args:
        table: `<pipeline>.<table>`, a table that a notification table announces.
        since: where an earlier read ended, or None for everything there is.
        tombstones: deleted rows come too, with `_deleted` true; they come while requests may still bring them back,
            which is `mutations.purge_after_days`.
        through: `change_feed` follows Delta's change data feed of the table instead, which has to be switched on.
        catalog: by default that of this project and environment.

    Raises:
        ConfigError: PIPELINE_UNKNOWN, TABLE_UNKNOWN, CHANGES_NOT_ANNOUNCED, CHANGES_POSITION_UNKNOWN, CHANGE_FEED_OFF.
        ContractError: CHANGES_EXPIRED, CHANGES_STARTED_OVER.
    """
    followed = followed_table(spark, catalog or load_catalog(tolerant=True), table)
    position = ChangePosition.parse(since) if isinstance(since, str) else since
    if through == "change_feed":
        from deltaworks.mutations.change_feed import read_feed

        return read_feed(followed, position, tombstones=tombstones)
    return _read_notified(followed, position, tombstones=tombstones)


def followed_table(spark: SparkSession, catalog: Catalog, table: str) -> FollowedTable:
    """The table called `<pipeline>.<table>` and the one that announces it.

    Raises:
        ConfigError: PIPELINE_UNKNOWN, TABLE_UNKNOWN.
    """
    pipeline, _, name = table.partition(".")
    spec = catalog.pipeline(pipeline)
    known = {each.name: each for each in spec.tables if each.announces is None}
    if name not in known:
        raise ConfigError(
            "TABLE_UNKNOWN",
            f"There is no bronze table {table!r}.",
            hint=f"Name it as <pipeline>.<table>; {pipeline} has {', '.join(known)}.",
        )
    told = [each for each in spec.tables if each.announces is not None and each.announces.table == name]
    return FollowedTable(spark, Lake(catalog.environment.lake), spec, known[name], told[0] if told else None)


def position_after(
    table: DeltaTable | None, since: ChangePosition | None, through: Through
) -> tuple[ChangePosition, int | None]:
    """Where a read of the open table ends, and the version it begins after: None for everything.

    Raises:
        ContractError: CHANGES_STARTED_OVER where the position is another table's.
    """
    if table is None:
        return since or ChangePosition(through=through, table_id="", version=-1), None
    now = ChangePosition(through=through, table_id=str(table.metadata().id), version=table.version())
    if since is None or not since.table_id:
        return now, None
    if (since.through, since.table_id) != (now.through, now.table_id) or since.version > now.version:
        raise ContractError(
            "CHANGES_STARTED_OVER",
            f"The position {since} is none of {table.table_uri} at version {now.version}: that table was made anew or "
            "restored, or the position was kept by a reader of another one.",
            hint="Empty what was derived and read everything anew with since=None.",
        )
    return now, since.version


def _read_notified(followed: FollowedTable, since: ChangePosition | None, *, tombstones: bool) -> Changes:
    if followed.told is None:
        raise ConfigError(
            "CHANGES_NOT_ANNOUNCED",
            f"No table of {followed.pipeline.pipeline} announces {followed.data.name!r}: nothing tells what changed.",
            hint="Declare one with `announces`, or switch on Delta's change data feed and read through it.",
        )
    key, lake = followed.key(followed.told), followed.lake
    told = lake.open(key)
    position, after = position_after(told, since, "notifications")
    if told is None:
        found, everything = Notified(), True
    elif after is None:
        found, everything = notified_ever(lake, key, followed.told, told), True
    else:
        found, everything = notified_between(lake, key, followed.told, after=after, up_to=position.version), False
    # Opened after the notifications: data is committed before what tells of it.
    data = lake.open(followed.key(followed.data))
    version = data.version() if data is not None else None
    snapshot = followed.at(version)
    changed = snapshot.where(_last_change(followed, found, everything=everything) & _bounds(found, everything))
    living = followed.living(snapshot)
    return Changes(
        rows=changed if tombstones else followed.living(changed),
        snapshot=living,
        position=position,
        data_version=version,
        nothing=not found,
    )


def _last_change(followed: FollowedTable, found: Notified, *, everything: bool) -> Column:
    """Whether the last change of a row was notified."""
    batches = {kind: _ranges(numbers) for kind, numbers in found.batches.items()}
    if everything:
        # Rows that came before anything was announced are part of everything.
        batches = {kind: [(None, ranges[-1][1])] for kind, ranges in batches.items()}
    arrived = _within(F.col(_BATCH_COLUMN), batches.get("stream", []))
    if followed.data.mutable is None:
        return arrived
    mutated = _within(F.col(MUTATION_COLUMN), batches.get("mutation", []))
    return (F.col(MUTATION_COLUMN).isNull() & arrived) | mutated


def _bounds(found: Notified, everything: bool) -> Column:
    """What lets files be skipped: the organisations and dates of the notifications."""
    bounds = F.lit(True)
    if everything:
        return bounds
    if found.orgs is not None and len(found.orgs) <= _LISTED_ORGS:
        bounds &= F.col(ORG_COLUMN).isin(sorted(found.orgs))
    for name, dates in found.dates.items():
        told = sorted(date for date in dates or () if date is not None)
        if dates is None or not told:
            continue
        within = F.col(name).between(_date(told[0]), _date(told[-1]))
        bounds &= (within | F.col(name).isNull()) if None in dates else within
    return bounds


def _date(value: dt.date) -> Column:
    return F.lit(value)


def _ranges(numbers: Iterable[int]) -> list[tuple[int | None, int]]:
    """Numbers as inclusive ranges: batches come one behind the other, so these are few."""
    ranges: list[tuple[int | None, int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def _within(column: Column, ranges: Sequence[tuple[int | None, int]]) -> Column:
    """Whether a column is in one of the ranges, in terms that files can be skipped by."""
    found = F.lit(False)
    for least, greatest in ranges:
        found |= (column <= greatest) if least is None else column.between(least, greatest)
    return found
