"""Computes the changes between two states of a feed's source, ordered by key.

Both states are immutable, so the same pair always yields the same changes, and a delivery can resume. Equal rows are no
change, even if their partition was rebuilt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb

#: Number of rows per fetch.
_FETCH_ROWS = 1000
_ROW_COLUMN: Final = "_row"


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one key. `row` is None if the row was deleted.

    `row_count` is the number of rows that have the key now; with more than one the row is ambiguous. A `key` that
    contains null identifies no row.
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
    """Yields the changes from relation `before` to relation `after`, ordered by key.

    Args:
        before: a view of the connection with the columns `key` and `columns`; None for no rows. `after` likewise.
        skip: number of changes to skip at the start.
    """
    if before is None and after is None:
        return
    statement = _diff_sql(before, after, key=key, columns=columns)
    result = connection.execute(f"{statement} OFFSET {int(skip)}")
    while rows := result.fetchmany(_FETCH_ROWS):
        for *values, row_count, row in rows:
            content = row if columns else {}
            yield Change(
                key=dict(zip(key, values, strict=True)), row=content if row_count else None, row_count=row_count
            )


def count_changes(
    connection: duckdb.DuckDBPyConnection,
    *,
    before: str | None,
    after: str | None,
    key: Sequence[str],
    columns: Sequence[str],
) -> int:
    """Counts the changes."""
    if before is None and after is None:
        return 0
    statement = _diff_sql(before, after, key=key, columns=columns)
    row = connection.execute(f"SELECT count(*) FROM ({statement})").fetchone()
    return int(row[0]) if row else 0


def _diff_sql(before: str | None, after: str | None, *, key: Sequence[str], columns: Sequence[str]) -> str:
    keys = [_quoted(name) for name in key]
    join_condition = " AND ".join(f"old.{name} IS NOT DISTINCT FROM new.{name}" for name in keys)
    key_columns = ", ".join(f"coalesce(new.{name}, old.{name}) AS {name}" for name in keys)
    # Keys with a null are never delivered, so their deletion is not a change.
    has_key = " AND ".join(f"coalesce(new.{name}, old.{name}) IS NOT NULL" for name in keys)
    row = _quoted(_ROW_COLUMN)
    old, new = _group_by_key_sql(before, after, keys, columns), _group_by_key_sql(after, before, keys, columns)
    return (
        f"WITH old AS ({old}), new AS ({new}) "
        f"SELECT {key_columns}, coalesce(new.row_count, 0) AS row_count, new.{row} "
        f"FROM old FULL JOIN new ON {join_condition} "
        "WHERE (old.row_count IS DISTINCT FROM new.row_count OR CASE WHEN new.row_count > 1 "
        f"THEN old.digest IS DISTINCT FROM new.digest ELSE old.{row} IS DISTINCT FROM new.{row} END) "
        f"AND (new.row_count IS NOT NULL OR {has_key}) ORDER BY {', '.join(f'{name} NULLS FIRST' for name in keys)}"
    )


def _group_by_key_sql(relation: str | None, other: str | None, keys: Sequence[str], columns: Sequence[str]) -> str:
    """Returns SQL with one row per key: row count, one of the rows, and a digest of all.

    Without a relation the result is empty and has the columns of `other`.
    """
    fields = ", ".join(f"{_quoted(name)} := {_quoted(name)}" for name in columns) or "present := true"
    key_list, row = ", ".join(keys), _quoted(_ROW_COLUMN)
    rows = _quoted(relation or other or "") + ("" if relation is not None else " WHERE false")
    return (
        f"SELECT {key_list}, count(*) AS row_count, bit_xor(hash({row})) AS digest, any_value({row}) AS {row} "
        f"FROM (SELECT {key_list}, struct_pack({fields}) AS {row} FROM {rows}) GROUP BY {key_list}"
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
