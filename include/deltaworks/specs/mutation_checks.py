"""Whether what a pipeline declares of mutable, announcing and request tables fits together; what does not, and where.

Every check returns its problems, each with its place below the declaration it was given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from deltaworks.specs.base import Problem, nearest_of
from deltaworks.specs.mutation import ORG_COLUMN, REQUEST_COLUMNS, MutableSpec

if TYPE_CHECKING:
    from deltaworks.specs.pipeline import ColumnSpec, PipelineSpec, TableSpec


def mutable_problems(table: TableSpec) -> Iterator[Problem]:
    """What a mutable table lacks: columns of their own for values that change and for those that arrived."""
    mutable = table.mutable
    if mutable is None:
        return
    columns = {column.name: column for column in table.columns}
    if ORG_COLUMN not in columns or columns[ORG_COLUMN].type != "string":
        yield ("mutable",), f"a mutable table has a column {ORG_COLUMN!r} of type string"
    pairs = _pairs(mutable)
    for place, name in pairs:
        if name not in columns:
            yield place, f"there is no column {name!r} in this table; {nearest_of(name, columns)}"
        elif name in table.partition_by:
            yield place, f"{name!r} is a partition column: a value that changes cannot be, nor what it was"
    named = [name for _, name in pairs]
    for name in sorted({name for name in named if named.count(name) > 1}):
        yield ("mutable",), f"column {name!r} stands for two things; each has a column of its own"
    if mutable.id in columns and columns[mutable.id].type != "string":
        yield ("mutable", "id"), f"{mutable.id!r} is {columns[mutable.id].type}; ids are of type string"
    yield from _same_source(columns, mutable.id, mutable.origin, ("mutable", "origin"))
    for name, origin in mutable.fields.items():
        yield from _same_source(columns, name, origin, ("mutable", "fields", name))


def _pairs(mutable: MutableSpec) -> list[tuple[tuple[str | int, ...], str]]:
    """Every column that is named, with the place that names it."""
    places: list[tuple[tuple[str | int, ...], str]] = [
        (("mutable", "id"), mutable.id),
        (("mutable", "origin"), mutable.origin),
    ]
    for name, origin in mutable.fields.items():
        places += [(("mutable", "fields", name), name), (("mutable", "fields", name), origin)]
    return places


def _same_source(
    columns: Mapping[str, ColumnSpec], name: str, origin: str, place: tuple[str | int, ...]
) -> Iterator[Problem]:
    if name not in columns or origin not in columns:
        return
    changing, kept = columns[name], columns[origin]
    if (changing.path, changing.type, changing.unit) != (kept.path, kept.type, kept.unit):
        yield (
            place,
            f"{origin!r} keeps what arrived for {name!r}: give it the same path, type and unit ({changing.path}, "
            f"{changing.type}, {changing.unit})",
        )


def announcing_problems(table: TableSpec) -> Iterator[Problem]:
    """What a notification table declares that is not its own to declare."""
    if table.announces is None:
        return
    for name in ("when", "catch_all", "rules", "duplicates", "mutable"):
        if getattr(table, name):
            yield (
                (name,),
                f"{table.name!r} announces {table.announces.table!r} and takes no events of its own: no {name}",
            )
    if table.evolve != "ignore":
        yield ("evolve",), f"{table.name!r} announces {table.announces.table!r}: its columns are those declared"


def mutation_problems(pipeline: PipelineSpec) -> Iterator[Problem]:
    """What does not fit between the tables of a pipeline and its mutations."""
    for index, table in enumerate(pipeline.tables):
        for place, text in _announced_problems(pipeline, table):
            yield ("tables", index, *place), text
        if table.mutable is not None and pipeline.mutations is None:
            yield ("tables", index, "mutable"), "declare `mutations`: without requests nothing changes a table"
    mutable = {table.name for table in pipeline.tables if table.mutable is not None}
    for index, live in enumerate(pipeline.live):
        if live.reads in mutable:
            yield (
                ("live", index, "reads"),
                f"{live.reads!r} is mutable: what a live table has counted would change behind it; use a gold table",
            )
    if pipeline.mutations is None:
        return
    if not mutable:
        yield ("mutations",), "no table declares `mutable`: there is nothing to apply requests to"
    yield from _requests_problems(pipeline, pipeline.mutations.requests)
    yield from _made_table_problems(pipeline)


def _announced_problems(pipeline: PipelineSpec, table: TableSpec) -> Iterator[Problem]:
    if table.announces is None:
        return
    announced = {each.name: each for each in pipeline.tables if each.announces is None}
    if table.announces.table not in announced:
        known = nearest_of(table.announces.table, announced)
        yield ("announces", "table"), f"there is no table {table.announces.table!r} to announce; {known}"
        return
    data = announced[table.announces.table]
    types = data.column_types()
    key = table.announces.key
    if types.get(key) != "string":
        texts = [name for name, kind in types.items() if kind == "string"]
        yield ("announces", "key"), f"{key!r} is no text column of {data.name!r}; {nearest_of(key, texts)}"
    for index, column in enumerate(table.columns):
        if types.get(column.name) != column.type:
            known = nearest_of(column.name, types) if column.name not in types else f"there it is {types[column.name]}"
            yield (
                ("columns", index, "name"),
                f"{column.name!r} is taken over from {data.name!r}, which has no such column of {column.type}; {known}",
            )


def _requests_problems(pipeline: PipelineSpec, name: str) -> Iterator[Problem]:
    tables = {table.name: table for table in pipeline.tables if table.announces is None}
    if name not in tables:
        yield ("mutations", "requests"), f"there is no table {name!r} here; {nearest_of(name, tables)}"
        return
    requests = tables[name]
    if requests.mutable is not None:
        yield ("mutations", "requests"), f"{name!r} is mutable itself; requests are kept as they arrived"
    types = requests.column_types()
    wrong = [f"{column} {kind}" for column, kind in REQUEST_COLUMNS.items() if types.get(column) != kind]
    if wrong:
        yield ("mutations", "requests"), f"a table of requests has columns that {name!r} lacks: {', '.join(wrong)}"


def _made_table_problems(pipeline: PipelineSpec) -> Iterator[Problem]:
    """Names of the tables that mutations make and keep, and of the one they only write to."""
    mutations = pipeline.mutations
    if mutations is None:
        return
    announcing = [table.name for table in pipeline.tables if table.announces is not None]
    if mutations.notifications is not None and mutations.notifications not in announcing:
        yield (
            ("mutations", "notifications"),
            f"{mutations.notifications!r} is no table that announces another; "
            f"{nearest_of(mutations.notifications, announcing)}",
        )
    taken = ["quarantine", *(table.name for table in pipeline.tables), *(table.name for table in pipeline.live)]
    taken += [table.name for table in pipeline.gold.tables]
    for key in ("names", "intervals"):
        name = getattr(mutations, key)
        if name in taken:
            yield ("mutations", key), f"{name!r} is declared as another table; mutations make this one themselves"
        taken.append(name)
