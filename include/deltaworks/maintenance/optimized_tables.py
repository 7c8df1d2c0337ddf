"""Which tables of a pipeline OPTIMIZE looks after, and how each of them lies.

Bronze tables lie as they are declared. Live and gold tables, and quarantine, declare no layout: theirs is what is on
disk, and their small files are merged. A query that merges a live table, and a build that rewrites a part of a gold
table, would fail beside an OPTIMIZE of the same partition, so of these only closed partitions are taken.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import dataclass

from deltaworks.control import paths
from deltaworks.errors import ConfigError
from deltaworks.maintenance.layout import Layout
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import LiveTableSpec, TableSpec
from deltaworks.tables.lake import Lake


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizedTable:
    """A table OPTIMIZE looks after. `declared` is of a bronze table.

    A partition of a table that `only_closed` is left whatever its shape until its day has been over for
    `settles_after`, which is when its writer has done with it.
    """

    name: str
    declared: TableSpec | None = None
    only_closed: bool = False
    settles_after: dt.timedelta = dt.timedelta(0)


def optimized_tables(spec: PipelineSpec) -> dict[str, OptimizedTable]:
    """All of a pipeline's, by name: bronze tables first."""
    found = [OptimizedTable(name=table.name, declared=table) for table in spec.tables]
    found += [
        OptimizedTable(name=live.name, only_closed=True, settles_after=_settles_after(live)) for live in spec.live
    ]
    found += [OptimizedTable(name=gold.name, only_closed=True) for gold in spec.gold.tables]
    found.append(OptimizedTable(name="quarantine"))
    return {table.name: table for table in found}


def _settles_after(live: LiveTableSpec) -> dt.timedelta:
    """How long after its end a window may still change: the watermark comes to it with later events only."""
    return dt.timedelta(minutes=live.window_minutes + live.watermark_minutes)


def selected_tables(spec: PipelineSpec, names: Sequence[str] | None) -> dict[str, OptimizedTable]:
    """The tables called `names`, or all.

    Raises:
        ConfigError: TABLE_UNKNOWN.
    """
    known = optimized_tables(spec)
    unknown = sorted(set(names or ()) - set(known))
    if unknown:
        raise ConfigError(
            "TABLE_UNKNOWN",
            f"Pipeline {spec.pipeline!r} has no table {', '.join(unknown)} that OPTIMIZE looks after.",
            hint=f"It looks after {', '.join(known)}.",
        )
    return {name: table for name, table in known.items() if not names or name in names}


def layout_of(lake: Lake, pipeline: str, table: OptimizedTable) -> Layout:
    """How a table lies: as declared, or as it is found; without partitions where it is not there yet."""
    if table.declared is not None:
        return Layout.of(table.declared)
    opened = lake.open(paths.table(pipeline, table.name))
    fields = json.loads(opened.schema().to_json())["fields"] if opened is not None else []
    return Layout(
        name=table.name,
        partition_by=tuple(opened.metadata().partition_columns) if opened is not None else (),
        zorder_by=(),
        types={field["name"]: field["type"] for field in fields if isinstance(field["type"], str)},
        only_closed=table.only_closed,
        settles_after=table.settles_after,
    )
