"""A table whose changes are read: its data, the notification table that announces it, and positions in either."""

from __future__ import annotations

from dataclasses import dataclass

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaworks.control import paths
from deltaworks.errors import ConfigError, ContractError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.mutation import DELETED_COLUMN
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import TableSpec
from deltaworks.tables.changes import ChangePosition, Through
from deltaworks.tables.lake import Lake


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The result of a read. `rows` are lazy and fixed to `data_version`; `position` is where the next read begins.

    `snapshot` is the whole table at that version without deleted rows, to recompute figures from. `nothing` means that
    no change was notified, though the position may have moved. Before the table exists both frames are empty and
    `data_version` is None.
    """

    rows: DataFrame
    snapshot: DataFrame
    position: ChangePosition
    data_version: int | None
    nothing: bool


@dataclass(frozen=True, slots=True)
class FollowedTable:
    """A table whose changes are read. `announcing` is its notification table, None where it has none."""

    spark: SparkSession
    lake: Lake
    pipeline: PipelineSpec
    data: TableSpec
    announcing: TableSpec | None

    def key(self, table: TableSpec) -> str:
        """The key of one of the two tables in the lake."""
        return paths.table(self.pipeline.pipeline, table.name)

    def at(self, version: int | None) -> DataFrame:
        """The data at a version, deleted rows included; no rows before the table exists."""
        if version is None:
            ddl = ", ".join(f"`{name}` {kind}" for name, kind in self.data.column_types().items())
            return self.spark.createDataFrame([], ddl)
        uri = self.lake.storage.spark_uri(self.key(self.data))
        return self.spark.read.format("delta").option("versionAsOf", version).load(uri)

    def living(self, rows: DataFrame) -> DataFrame:
        """The rows without those that requests deleted."""
        if self.data.mutable is None:
            return rows
        return rows.where(~F.coalesce(F.col(DELETED_COLUMN), F.lit(False)))


def followed_table(spark: SparkSession, catalog: Catalog, table: str) -> FollowedTable:
    """Look up the table called `<pipeline>.<table>` and the one that announces it.

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
            hint=f"Name it as <pipeline>.<table>; {pipeline} has {', '.join(by_name)}.",
        )
    announcing = [other for other in spec.tables if other.announces is not None and other.announces.table == name]
    return FollowedTable(
        spark, Lake(catalog.environment.lake), spec, by_name[name], announcing[0] if announcing else None
    )


def position_after(
    table: DeltaTable | None, since: ChangePosition | None, through: Through
) -> tuple[ChangePosition, int | None]:
    """The position where a read of the open table ends, and the version it begins after: None for everything.

    Raises:
        ContractError: CHANGES_STARTED_OVER where the position is another table's.
    """
    if table is None:
        return since or ChangePosition(through=through, table_id="", version=-1), None
    newest = ChangePosition(through=through, table_id=str(table.metadata().id), version=table.version())
    if since is None or not since.table_id:
        return newest, None
    if (since.through, since.table_id) != (newest.through, newest.table_id) or since.version > newest.version:
        raise ContractError(
            "CHANGES_STARTED_OVER",
            f"The position {since} is none of {table.table_uri} at version {newest.version}: that table was made anew "
            "or restored, or the position was kept by a reader of another one.",
            hint="Empty what was derived and read everything anew with since=None.",
        )
    return newest, since.version
