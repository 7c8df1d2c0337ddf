"""Finds the latest row per key among rows in memory, and builds the SQL condition for "is newer" in a merge.

Rows have one total order: the `newest_by` columns, nulls first, then `_seq` and `_position`, which are unique together.
So the result does not depend on how rows are split, ordered or repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltaworks.specs.keyed import KeyedTable
from deltaworks.specs.mutation import DELETED_COLUMN
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.duckdb_session import duckdb_session

SOURCE, TARGET = "source", "target"
#: Arrow bytes that are buffered before they are reduced to the latest row per key.
BUFFERED_BYTES = 128 << 20
_ROW_INDEX = "row_index"


def to_keyed_rows(table: KeyedTable, rows: pa.Table) -> pa.Table:
    """Converts history rows to keyed rows: drops rows without a key, and flags rows that delete their key.

    Rows that a mutation deleted from the history are dropped too.
    """
    if table.is_history_mutable:
        rows = rows.filter(pc.invert(pc.fill_null(rows.column(DELETED_COLUMN), False)))
    for name in table.by:
        column = rows.column(name)
        if name in table.partition_by and pa.types.is_string(column.type):
            # Delta stores an empty partition value as null.
            rows = rows.filter(pc.not_equal(column, ""))
        elif column.null_count:
            rows = rows.filter(pc.is_valid(column))
    schema = arrow_schema(dict(table.types))
    if table.has_tombstones:
        deleted = _is_deleted(table, rows)
        if DELETED_COLUMN in rows.column_names:
            rows = rows.set_column(rows.schema.get_field_index(DELETED_COLUMN), DELETED_COLUMN, deleted)
        else:
            rows = rows.append_column(DELETED_COLUMN, deleted)
    return rows.select(schema.names).cast(schema)


def _is_deleted(table: KeyedTable, rows: pa.Table) -> pa.Array:
    """Returns a mask of the rows that delete their key: every `deleted_when` column has one of its declared values."""
    deleted = pa.chunked_array([pa.repeat(pa.scalar(True), rows.num_rows)])
    for name, values in table.deleted_when.items():
        column = rows.column(name)
        deleted = pc.and_(deleted, pc.is_in(column, value_set=pa.array(values, column.type)))
    return deleted


def latest_rows(table: KeyedTable, rows: pa.Table) -> pa.Table:
    """Returns the latest row per key, in the original order. `rows` come from `to_keyed_rows`."""
    if rows.num_rows <= 1:
        return rows
    ordering = pa.Table.from_arrays(
        [_comparable(rows.column(name)) for name in (*table.by, *table.sort_columns)],
        names=[*(f"k{index}" for index in range(len(table.by))), *_order_names(table)],
    ).append_column(_ROW_INDEX, pa.array(np.arange(rows.num_rows)))
    keys = ", ".join(f"k{index}" for index in range(len(table.by)))
    order = ", ".join(f"{name} DESC NULLS LAST" for name in _order_names(table))
    with duckdb_session() as connection:
        connection.register("narrow", ordering)
        latest = connection.sql(
            f"SELECT {_ROW_INDEX} FROM narrow QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY {order}) = 1 "
            f"ORDER BY {_ROW_INDEX}"
        ).to_arrow_table()
    return rows if latest.num_rows == rows.num_rows else rows.take(latest.column(0))


def _order_names(table: KeyedTable) -> list[str]:
    return [f"o{index}" for index in range(len(table.sort_columns))]


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    # Compared as microseconds, independent of the session's time zone.
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def iter_latest_rows(table: KeyedTable, parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Reduces many parts to the latest row per key. Yields one table, or several if the keys exceed the buffer.

    With several tables a key may occur in more than one; merging each of them still yields the latest row.
    """
    buffered: list[pa.Table] = []
    buffered_bytes = 0
    for part in parts:
        rows = to_keyed_rows(table, part)
        buffered.append(rows)
        buffered_bytes += rows.nbytes
        if buffered_bytes >= BUFFERED_BYTES:
            reduced = latest_rows(table, pa.concat_tables(buffered))
            buffered, buffered_bytes = [reduced], reduced.nbytes
            if buffered_bytes >= BUFFERED_BYTES // 2:
                yield reduced
                buffered, buffered_bytes = [], 0
    if buffered:
        yield latest_rows(table, pa.concat_tables(buffered))


def same_key_condition(table: KeyedTable, *, quote: str) -> str:
    """Returns the SQL condition that source and target row have the same key."""
    columns = (f"{quote}{name}{quote}" for name in table.by)
    return " AND ".join(f"{TARGET}.{column} = {SOURCE}.{column}" for column in columns)


def newer_condition(table: KeyedTable, *, quote: str) -> str:
    """Returns the SQL condition that the source row is newer than the target row. It never evaluates to null."""
    condition = "false"
    for name in reversed(table.sort_columns):
        ours, theirs = f"{SOURCE}.{quote}{name}{quote}", f"{TARGET}.{quote}{name}{quote}"
        greater = f"({theirs} IS NULL AND {ours} IS NOT NULL) OR coalesce({ours} > {theirs}, false)"
        condition = f"({greater} OR (({ours} IS NOT DISTINCT FROM {theirs}) AND {condition}))"
    return condition
