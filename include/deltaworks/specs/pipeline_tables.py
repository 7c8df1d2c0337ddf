"""What has to fit together between the tables of a pipeline: their names, and which of them read which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from deltaworks.specs.base import Place, Problem, nearest_of
from deltaworks.specs.gold import GoldTableSpec, circle_in
from deltaworks.specs.keyed import KeyedTable
from deltaworks.specs.live import LiveTableSpec
from deltaworks.specs.mutation import ORG_COLUMN
from deltaworks.specs.table import RESERVED_TABLES, TableSpec

if TYPE_CHECKING:
    from deltaworks.specs.pipeline import PipelineSpec


def table_problems(pipeline: PipelineSpec) -> Iterator[Problem]:
    """Everything that does not fit between the tables, each at its place."""
    yield from _names_twice(pipeline)
    yield from _live_problems(pipeline)
    yield from _gold_problems(pipeline)
    for index, table in enumerate(pipeline.tables):
        if table.duplicates is not None and not pipeline.event.id:
            yield (
                ("tables", index, "duplicates"),
                f"{table.name} flags duplicates, which are identified by event.id; declare it",
            )


def declared_tables(pipeline: PipelineSpec) -> Iterator[tuple[Place, TableSpec | LiveTableSpec | GoldTableSpec]]:
    """Every bronze, live and gold table with its place."""
    for index, table in enumerate(pipeline.tables):
        yield ("tables", index), table
    for index, live in enumerate(pipeline.live):
        yield ("live", index), live
    for index, gold in enumerate(pipeline.gold.tables):
        yield ("gold", "tables", index), gold


def _names_twice(pipeline: PipelineSpec) -> Iterator[Problem]:
    first: dict[str, Place] = {}
    for place, table in declared_tables(pipeline):
        if table.name in first:
            text = f"table {table.name} is declared twice in this pipeline; give one of them another name"
            yield (*place, "name"), text, ((*first[table.name], "name"),)
        elif table.name in RESERVED_TABLES and not isinstance(table, TableSpec):
            yield (*place, "name"), f"the name {table.name!r} is the engine's own; choose another"
        first.setdefault(table.name, place)
    for index, history in enumerate(pipeline.tables):
        keyed = KeyedTable.of(history)
        if keyed is None:
            continue
        place = ("tables", index, "keyed")
        if keyed.name in first:
            text = f"table {keyed.name} is declared twice in this pipeline; give the keyed one another name, by `table`"
            yield place, text, (first[keyed.name],)
        elif keyed.name in RESERVED_TABLES:
            yield place, f"the name {keyed.name!r} is the engine's own; choose another, by `table`"
        first.setdefault(keyed.name, place)


def _live_problems(pipeline: PipelineSpec) -> Iterator[Problem]:
    bronze = {table.name: table for table in pipeline.tables}
    for index, live in enumerate(pipeline.live):
        if live.reads not in bronze:
            yield (
                ("live", index, "reads"),
                f"{live.name!r} reads {live.reads!r}, no table here; {nearest_of(live.reads, bronze)}",
            )
            continue
        if bronze[live.reads].evolve == "add_columns":
            yield (
                ("live", index, "reads"),
                f"{live.name!r} reads {live.reads!r}, whose columns change while it runs, which ends a live "
                f"table's query; declare evolve: rescue for {live.reads!r}",
            )
        columns = bronze[live.reads].column_types()
        for position, name in enumerate(live.group_by):
            if name not in columns:
                yield (
                    ("live", index, "group_by", position),
                    f"{live.name!r} groups by {name}, no column of {live.reads!r}; {nearest_of(name, columns)}",
                )


def _gold_problems(pipeline: PipelineSpec) -> Iterator[Problem]:
    partitions = _partition_columns(pipeline)
    types = {table.name: table.column_types() for table in pipeline.tables}
    types |= {table.name: dict(table.types) for table in pipeline.keyed_tables}
    for index, gold in enumerate(pipeline.gold.tables):
        for position, read in enumerate(gold.reads):
            place = ("gold", "tables", index, "reads", position)
            if read not in partitions:
                yield place, f"{gold.name!r} reads {read!r}, no table here; {nearest_of(read, partitions)}"
                continue
            texts = [name for name in partitions[read] if read not in types or types[read].get(name) == "string"]
            if gold.affects == "same" and gold.partition_by not in texts:
                yield (
                    place,
                    f"{gold.name!r} says `affects: same`, and {read!r} is not partitioned by {gold.partition_by!r} "
                    "of type string",
                )
    circle = circle_in(pipeline.gold.tables)
    if circle:
        places = {gold.name: ("gold", "tables", index, "reads") for index, gold in enumerate(pipeline.gold.tables)}
        first, *others = sorted(places[name] for name in {*circle})
        yield first, f"gold tables read each other in a circle: {' reads '.join(circle)}", tuple(others)


def _partition_columns(pipeline: PipelineSpec) -> Mapping[str, tuple[str, ...]]:
    """The columns that each table is partitioned by that gold may read."""
    columns: dict[str, tuple[str, ...]] = {table.name: table.partition_by for table in pipeline.tables}
    if pipeline.mutations is not None:
        columns[pipeline.mutations.names] = (ORG_COLUMN,)
    columns |= {table.name: table.partition_by for table in pipeline.keyed_tables}
    return columns | {gold.name: (gold.partition_by,) for gold in pipeline.gold.tables}
