"""Partitions of a table as SQL: the literals that tell Delta which of them a command reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from deltaworks.tables.changes import Partition


def literal(value: str | None, kind: str) -> str:
    """A partition's value, as the Delta log writes it, as a SQL literal of a column's type."""
    if value is None:
        return "NULL"
    if kind in ("int", "long", "boolean"):
        return value
    # A raw string would end at a quote; a backslash begins an escape in Spark's strings.
    text = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"DATE'{text}'" if kind == "date" else f"'{text}'"


def within(partitions: Collection[Partition], types: Mapping[str, str]) -> str:
    """The condition a row of one of these partitions meets. `true` where the table has none."""
    columns = sorted({name for partition in partitions for name, _ in partition})
    if not columns:
        return "true"
    if len(columns) == 1:
        return _of_one(columns[0], [dict(partition)[columns[0]] for partition in partitions], types[columns[0]])
    return " OR ".join(
        "(" + " AND ".join(_of_one(name, [value], types[name]) for name, value in sorted(partition)) + ")"
        for partition in sorted(partitions, key=str)
    )


def _of_one(column: str, values: Sequence[str | None], kind: str) -> str:
    named = sorted({value for value in values if value is not None})
    conditions = [f"`{column}` IS NULL"] if None in values else []
    if named:
        conditions.append(f"`{column}` IN ({', '.join(literal(value, kind) for value in named)})")
    return conditions[0] if len(conditions) == 1 else f"({' OR '.join(conditions)})"
