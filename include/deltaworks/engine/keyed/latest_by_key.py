"""Looks up the latest rows of given keys in a history table at one version."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltaworks.specs.keyed import KeyedTable
from deltaworks.specs.mutation import DELETED_COLUMN
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.duckdb_session import duckdb_session
from deltaworks.tables.files import partition_value_text
from deltaworks.tables.log import Action, stats_of

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


#: Keys per pass over the history; their latest rows are held in memory.
KEYS_PER_PASS = 500_000
#: Maximum distinct values of a column to list individually for file skipping.
MAX_LISTED_VALUES = 1_000


def distinct_keys(table: KeyedTable, parts: Iterable[pa.Table]) -> pa.Table:
    """Returns the distinct non-null keys of these rows. `parts` have the key columns."""
    keys = arrow_schema({name: table.history_types[name] for name in table.by}).empty_table()
    buffered: list[pa.Table] = []
    for part in parts:
        buffered.append(part.drop_null())
        if sum(buffered_part.nbytes for buffered_part in buffered) >= BUFFERED_BYTES:
            keys, buffered = _deduplicate(table, [keys, *buffered]), []
    return _deduplicate(table, [keys, *buffered])


def _deduplicate(table: KeyedTable, parts: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(parts).group_by(list(table.by)).aggregate([]).select(list(table.by))


def key_chunks(keys: pa.Table) -> Iterator[pa.Table]:
    """Yields the keys in sorted chunks of one pass each, so that the keys of a pass are in few files."""
    sorted_keys = keys.sort_by([(name, "ascending") for name in keys.column_names])
    for start in range(0, sorted_keys.num_rows, KEYS_PER_PASS):
        yield sorted_keys.slice(start, KEYS_PER_PASS)


def latest_rows_of_keys(table: KeyedTable, parts: Iterable[pa.Table], keys: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Returns the latest history row of each key as one table, and the keys that have no row."""
    rows = arrow_schema(dict(table.types)).empty_table()
    if not keys.num_rows:
        return rows, keys
    reduced = list(iter_latest_rows(table, (_rows_with_keys(table, part, keys) for part in _coalesced(parts))))
    if reduced:
        rows = latest_rows(table, pa.concat_tables(reduced))
    return rows, _keys_without_rows(table, keys, rows)


def files_with_keys(table: KeyedTable, files: Iterable[Action], keys: pa.Table) -> list[Action]:
    """Returns the history files that may contain one of these keys, by partition and statistics."""
    ranges = key_ranges(table, keys)
    return [file for file in files if all(_may_contain(file, key_range) for key_range in ranges)]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """Range of a key column, for file skipping: minimum, maximum, and all values if there are few.

    The attribute `partition_texts` has these values in the Delta log's text form.
    """

    column: str
    minimum: Any
    maximum: Any
    values: tuple[Any, ...] | None
    partition_texts: frozenset[str | None] | None


def key_ranges(table: KeyedTable, keys: pa.Table) -> list[KeyRange]:
    """Returns the ranges of those key columns whose order in Delta statistics is known (texts and numbers)."""
    ranges = []
    for name in table.by:
        if table.history_types[name] not in ("string", "int", "long", "date") or not keys.num_rows:
            continue
        distinct = pc.unique(keys.column(name))
        bounds = pc.min_max(distinct).as_py()
        values = tuple(distinct.to_pylist()) if len(distinct) <= MAX_LISTED_VALUES else None
        texts = None if values is None else frozenset(map(partition_value_text, values))
        ranges.append(
            KeyRange(column=name, minimum=bounds["min"], maximum=bounds["max"], values=values, partition_texts=texts)
        )
    return ranges


def _may_contain(file: Action, keys: KeyRange) -> bool:
    partition = file.get("partitionValues") or {}
    if keys.column in partition:
        text = partition[keys.column]
        return text is not None and (keys.partition_texts is None or text in keys.partition_texts)
    stats = stats_of(file)
    low, high = (stats.get(side, {}).get(keys.column) for side in ("minValues", "maxValues"))
    minimum, maximum = (
        value.isoformat() if isinstance(value, dt.date) else value for value in (keys.minimum, keys.maximum)
    )
    return (low is None or low <= maximum) and (high is None or high >= minimum)


def _coalesced(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yields the same rows in fewer and larger tables."""
    buffered: list[pa.Table] = []
    buffered_bytes = 0
    for part in parts:
        buffered.append(part)
        buffered_bytes += part.nbytes
        if buffered_bytes >= BUFFERED_BYTES // 2:
            yield pa.concat_tables(buffered)
            buffered, buffered_bytes = [], 0
    if buffered:
        yield pa.concat_tables(buffered)


def _rows_with_keys(table: KeyedTable, rows: pa.Table, keys: pa.Table) -> pa.Table:
    """Returns the rows that have one of the keys."""
    return rows.take(_join_on_key(table, rows, keys, "SEMI"))


def _keys_without_rows(table: KeyedTable, keys: pa.Table, rows: pa.Table) -> pa.Table:
    """Returns the keys that do not occur in `rows`."""
    return keys.take(_join_on_key(table, keys, rows, "ANTI"))


def _join_on_key(table: KeyedTable, left: pa.Table, right: pa.Table, kind: str) -> pa.ChunkedArray:
    """Returns the indices of rows in `left` with a matching key in `right` (SEMI), or without one (ANTI)."""
    columns = [f"k{index}" for index in range(len(table.by))]
    left_keys = pa.Table.from_arrays([left.column(name) for name in table.by], names=columns)
    with duckdb_session() as connection:
        connection.register("ours", left_keys.append_column(_ROW_INDEX, pa.array(np.arange(left.num_rows))))
        connection.register("theirs", right.select(list(table.by)).rename_columns(columns))
        query = f"SELECT {_ROW_INDEX} FROM ours {kind} JOIN theirs USING ({', '.join(columns)}) ORDER BY {_ROW_INDEX}"
        return connection.sql(query).to_arrow_table().column(0)
