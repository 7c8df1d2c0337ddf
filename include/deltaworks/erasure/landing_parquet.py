"""Rewrites Parquet objects without the rows of erased people. An erased row is null except for a tombstone column."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from deltaworks.events.erasure_tombstones import ERASED_FIELD


def erase_parquet_rows(content: bytes, request_by_row: Mapping[int, str]) -> bytes:
    """Returns the object with these rows replaced by tombstones. Row groups, compression and other rows stay the same.

    Args:
        request_by_row: request id by row number.
    """
    file = pq.ParquetFile(pa.BufferReader(content))
    # Erased rows are null, so all columns must be nullable.
    schema = pa.schema([field.with_nullable(True) for field in file.schema_arrow], file.schema_arrow.metadata)
    if ERASED_FIELD not in schema.names:
        schema = schema.append(pa.field(ERASED_FIELD, pa.string()))
    metadata = file.metadata
    codec = metadata.row_group(0).column(0).compression if metadata.num_row_groups else "NONE"
    sink = pa.BufferOutputStream()
    first = 0
    with pq.ParquetWriter(sink, schema, compression=codec.lower()) as writer:
        for group in range(metadata.num_row_groups):
            rows = file.read_row_group(group)
            writer.write_table(_replace_rows(rows, schema, request_by_row, first), row_group_size=max(1, rows.num_rows))
            first += rows.num_rows
    return bytes(sink.getvalue())


def _replace_rows(rows: pa.Table, schema: pa.Schema, request_by_row: Mapping[int, str], first: int) -> pa.Table:
    requests = [request_by_row.get(first + number) for number in range(rows.num_rows)]
    row_indexes = pa.array([number if request is None else None for number, request in enumerate(requests)], pa.int64())
    existing = rows.column(ERASED_FIELD).to_pylist() if ERASED_FIELD in rows.schema.names else [None] * rows.num_rows
    columns = []
    for column in schema:
        if column.name == ERASED_FIELD:
            columns.append(pa.array([new or old for new, old in zip(requests, existing, strict=True)], column.type))
        else:
            columns.append(rows.column(column.name).take(row_indexes))
    return pa.Table.from_arrays(columns, schema=schema)
