"""Looks up the latest rows of given keys in a history table at one version."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltaworks.engine.keyed.latest_rows import BUFFERED_BYTES, iter_latest_rows, latest_rows
from deltaworks.specs.keyed import KeyedTable
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.duckdb_session import duckdb_session
from deltaworks.tables.files import partition_value_text
from deltaworks.tables.log import Action, stats_of

#: Keys per pass over the history; their latest rows are held in memory.
KEYS_PER_PASS = 500_000
#: Maximum distinct values of a column to list individually for file skipping.
MAX_LISTED_VALUES = 1_000
_ROW_INDEX = "row_index"


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
