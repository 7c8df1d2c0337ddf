"""The layout of tables (partitioning and row order), and the tables that OPTIMIZE maintains.

Bronze tables use their declared layout. Live, gold and quarantine tables declare none; their small files are merged. A
live query or gold build would conflict with an OPTIMIZE of the same partition, so only their closed partitions are
rewritten. A live table of latest rows has no partitions and is rewritten under its write turn.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deltaworks.control import paths
from deltaworks.errors import ConfigError
from deltaworks.specs.base import nearest_names_hint
from deltaworks.specs.live import LiveTableSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.pipeline_sections import ARCHIVE
from deltaworks.specs.table import TableSpec
from deltaworks.tables.lake import Lake


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The layout of a table: partition columns, order of rows, and column types.

    Rows that change after landing (`has_mutable_rows`) make files lose their order. With `only_closed` no open
    partition is rewritten, and others at the earliest `final_after` the end of their day.
    """

    name: str
    partition_by: tuple[str, ...]
    zorder_by: tuple[str, ...]
    types: Mapping[str, str] = field(hash=False)
    cluster_by: tuple[str, ...] = ()
    has_mutable_rows: bool = False
    only_closed: bool = False
    final_after: dt.timedelta = dt.timedelta(0)

    @classmethod
    def from_spec(cls, table: TableSpec) -> Layout:
        """Returns the declared layout of a bronze table."""
        return cls(
            name=table.name,
            partition_by=table.partition_by,
            zorder_by=table.zorder_by,
            types=table.column_types(),
            cluster_by=table.cluster_by,
            has_mutable_rows=table.mutable is not None,
        )

    @property
    def ordered_by(self) -> tuple[str, ...]:
        """The Z-order columns, or the clustering columns."""
        return self.cluster_by or self.zorder_by

    @property
    def date_columns(self) -> tuple[str, ...]:
        """The partition columns of type date."""
        return tuple(name for name in self.partition_by if self.types[name] == "date")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizedTable:
    """A table that OPTIMIZE maintains. `declared` is the spec of a bronze table.

    A table that mutations or its stream merge has `needs_write_turn` and is rewritten under its write turn. With
    `only_closed` a partition is skipped until `final_after` has passed since the end of its day, when it is no longer
    written.
    """

    name: str
    declared: TableSpec | None = None
    needs_write_turn: bool = False
    only_closed: bool = False
    final_after: dt.timedelta = dt.timedelta(0)


def optimized_tables(spec: PipelineSpec) -> dict[str, OptimizedTable]:
    """Returns all tables of a pipeline that OPTIMIZE maintains, by name, bronze tables first."""
    tables = [
        OptimizedTable(name=table.name, declared=table, needs_write_turn=table.mutable is not None)
        for table in spec.tables
    ]
    tables += [
        OptimizedTable(name=table.name, needs_write_turn=True) for table in (*spec.keyed_tables, *spec.latest_tables)
    ]
    tables += [
        OptimizedTable(name=live.name, only_closed=True, final_after=_window_final_after(live))
        for live in spec.aggregation_tables
    ]
    tables += [OptimizedTable(name=gold.name, only_closed=True) for gold in spec.gold.tables]
    tables += [
        OptimizedTable(name=engine_table, only_closed=engine_table == ARCHIVE) for engine_table in spec.engine_tables
    ]
    return {table.name: table for table in tables}


def _window_final_after(live: LiveTableSpec) -> dt.timedelta:
    """Returns how long after its end a window may still change, which is until the watermark has passed it."""
    return dt.timedelta(minutes=live.window_minutes + live.watermark_minutes)


def select_tables(spec: PipelineSpec, names: Sequence[str] | None) -> dict[str, OptimizedTable]:
    """Returns the tables with these names, or all that OPTIMIZE maintains.

    Raises:
        ConfigError: TABLE_UNKNOWN.
    """
    tables = optimized_tables(spec)
    unknown = sorted(set(names or ()) - set(tables))
    if unknown:
        raise ConfigError(
            "TABLE_UNKNOWN",
            f"Pipeline {spec.pipeline!r} has no table {', '.join(unknown)} that OPTIMIZE maintains.",
            hint=nearest_names_hint(unknown, tables, prefix="OPTIMIZE maintains"),
        )
    return {name: table for name, table in tables.items() if not names or name in names}


def read_layout(lake: Lake, pipeline: str, table: OptimizedTable) -> Layout:
    """Returns the layout of a table, as declared or from its Delta log; empty if the table does not exist."""
    if table.declared is not None:
        return Layout.from_spec(table.declared)
    opened = lake.open(paths.table(pipeline, table.name))
    fields = json.loads(opened.schema().to_json())["fields"] if opened is not None else []
    return Layout(
        name=table.name,
        partition_by=tuple(opened.metadata().partition_columns) if opened is not None else (),
        zorder_by=(),
        types={field["name"]: field["type"] for field in fields if isinstance(field["type"], str)},
        has_mutable_rows=table.needs_write_turn,
        only_closed=table.only_closed,
        final_after=table.final_after,
    )
