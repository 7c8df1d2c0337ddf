"""The tables that mutations maintain themselves: the resolved intervals, and the mapping from ids to names."""

from __future__ import annotations

from collections.abc import Mapping

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaworks.control import paths
from deltaworks.control.provenance import MUTATE, user_metadata
from deltaworks.maintenance.layout import Layout
from deltaworks.specs.mutation import INTERVALS_COLUMNS, NAMES_COLUMNS, ORG_COLUMN, MutationsSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.lake import Lake

_KEY = (ORG_COLUMN, "id", "valid_from")


def kept_layouts(declared: MutationsSpec) -> list[Layout]:
    """The layout of both tables."""
    columns: dict[str, Mapping[str, str]] = {
        declared.intervals: INTERVALS_COLUMNS,
        declared.names: NAMES_COLUMNS,
    }
    return [
        Layout(name=name, partition_by=(ORG_COLUMN,), zorder_by=("id",), types=types) for name, types in columns.items()
    ]


def ensure_kept_tables(lake: Lake, spec: PipelineSpec, declared: MutationsSpec) -> None:
    """Create both tables where they are missing."""
    metadata = user_metadata(pipeline=spec.pipeline, batch=0, operation=MUTATE)
    properties = spec.maintenance.table_properties()
    for layout in kept_layouts(declared):
        schema = arrow_schema(layout.types)
        key = paths.table(spec.pipeline, layout.name)
        partition_by = list(layout.partition_by)
        lake.ensure(key, schema, user_metadata=metadata, partition_by=partition_by, properties=properties)


def interval_changes(stored: DataFrame, resolved: DataFrame) -> DataFrame:
    """The difference of the stored intervals from `resolved`: rows to write, and those to remove with `gone` true."""
    columns = [name for name in INTERVALS_COLUMNS if name not in _KEY]
    same_key = [F.col(f"stored.{name}").eqNullSafe(F.col(f"resolved.{name}")) for name in _KEY]
    both = stored.alias("stored").join(resolved.alias("resolved"), same_key, "full_outer")
    gone, new = F.col(f"resolved.{ORG_COLUMN}").isNull(), F.col(f"stored.{ORG_COLUMN}").isNull()
    equal_columns = [_comparable("stored", name).eqNullSafe(_comparable("resolved", name)) for name in columns]
    changed = gone | new
    for equal in equal_columns:
        changed = changed | ~equal
    key = [F.when(gone, F.col(f"stored.{name}")).otherwise(F.col(f"resolved.{name}")).alias(name) for name in _KEY]
    return both.where(changed).select(*key, *(F.col(f"resolved.{name}") for name in columns), gone.alias("gone"))


def _comparable(side: str, name: str) -> Column:
    column = F.col(f"{side}.{name}")
    return F.array_sort(F.map_entries(column)) if INTERVALS_COLUMNS[name].startswith("map") else column


def merge_intervals(session: SparkSession, uri: str, changes: DataFrame, *, organisations: Column) -> None:
    """Write the changes to the table of intervals, as one commit."""
    same = organisations
    for name in _KEY:
        same = same & F.col(f"target.{name}").eqNullSafe(F.col(f"source.{name}"))
    values: dict[str, str | Column] = {name: F.col(f"source.{name}") for name in INTERVALS_COLUMNS}
    (
        DeltaTable.forPath(session, uri)
        .alias("target")
        .merge(changes.alias("source"), same)
        .whenMatchedDelete("source.gone")
        .whenMatchedUpdate(set=values)
        .whenNotMatchedInsert("NOT source.gone", values=values)
        .execute()
    )
