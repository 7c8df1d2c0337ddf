"""What lies between two states of what a feed reads, key by key, in the order of keys.

Both states stay as they are, so the same two give the same changes whenever they are compared: a delivery that is
resumed goes on where it was. Rows that are equal are no change, however often a partition was rebuilt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb

#: Rows of a result that are in memory at once.
_FETCH_ROWS = 1000
_ROW_COLUMN: Final = "_row"


@dataclass(frozen=True, slots=True)
class Change:
    """What became of the row of one key. `row` is None where it is there no more.

    `copies` is how many rows the key has now: of more than one it is not known which is meant. `key` may hold null, by
    which no row can be named.
    """

    key: dict[str, Any]
    row: dict[str, Any] | None
    row_count: int


def iter_changes(
    connection: duckdb.DuckDBPyConnection,
    *,
    before: str | None,
    after: str | None,
    key: Sequence[str],
    columns: Sequence[str],
    skip: int = 0,
) -> Iterator[Change]:
    """The changes that make the rows of the relation `before` those of `after`, in the order of keys.

    Args:
        before: a view of the connection with the columns `key` and `columns`; None for no rows. `after` likewise.
        skip: so many of the first changes are left out.
    """
    if before is None and after is None:
        return
    statement = _diff_sql(before, after, key=key, columns=columns)
    result = connection.execute(f"{statement} OFFSET {int(skip)}")
    while rows := result.fetchmany(_FETCH_ROWS):
        for *values, copies, row in rows:
            content = row if columns else {}
            yield Change(key=dict(zip(key, values, strict=True)), row=content if copies else None, row_count=copies)


def count_changes(
    connection: duckdb.DuckDBPyConnection,
    *,
    before: str | None,
    after: str | None,
    key: Sequence[str],
    columns: Sequence[str],
) -> int:
    """How many changes there are."""
    if before is None and after is None:
        return 0
    statement = _diff_sql(before, after, key=key, columns=columns)
    row = connection.execute(f"SELECT count(*) FROM ({statement})").fetchone()
    return int(row[0]) if row else 0


def _diff_sql(before: str | None, after: str | None, *, key: Sequence[str], columns: Sequence[str]) -> str:
    keys = [_quoted(name) for name in key]
    join_condition = " AND ".join(f"old.{name} IS NOT DISTINCT FROM new.{name}" for name in keys)
    key_columns = ", ".join(f"coalesce(new.{name}, old.{name}) AS {name}" for name in keys)
    # A key without a null names a row; one with a null was never delivered, so its end is no news.
    has_key = " AND ".join(f"coalesce(new.{name}, old.{name}) IS NOT NULL" for name in keys)
    row = _quoted(_ROW_COLUMN)
    old, new = _group_by_key_sql(before, after, keys, columns), _group_by_key_sql(after, before, keys, columns)
    return (
        f"WITH old AS ({old}), new AS ({new}) "
        f"SELECT {key_columns}, coalesce(new.copies, 0) AS copies, new.{row} FROM old FULL JOIN new ON {join_condition} "
        "WHERE (old.copies IS DISTINCT FROM new.copies OR CASE WHEN new.copies > 1 "
        f"THEN old.print IS DISTINCT FROM new.print ELSE old.{row} IS DISTINCT FROM new.{row} END) "
        f"AND (new.copies IS NOT NULL OR {has_key}) ORDER BY {', '.join(f'{name} NULLS FIRST' for name in keys)}"
    )


def _group_by_key_sql(relation: str | None, other: str | None, keys: Sequence[str], columns: Sequence[str]) -> str:
    """A row a key: how many rows it has, one of them, and a digest of all. Without a relation, none of the other's."""
    fields = ", ".join(f"{_quoted(name)} := {_quoted(name)}" for name in columns) or "present := true"
    key_list, row = ", ".join(keys), _quoted(_ROW_COLUMN)
    rows = _quoted(relation or other or "") + ("" if relation is not None else " WHERE false")
    return (
        f"SELECT {key_list}, count(*) AS copies, bit_xor(hash({row})) AS print, any_value({row}) AS {row} "
        f"FROM (SELECT {key_list}, struct_pack({fields}) AS {row} FROM {rows}) GROUP BY {key_list}"
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
