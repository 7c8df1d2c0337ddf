"""Rows of a table as Arrow, of those with deletion vectors too, which deltalake's dataset refuses to open.

The dataset reads files as they are, pushing filters and columns down. Where rows of a file may be marked as deleted
beside it, deltalake's own scan reads the table, which honours the marks; it reads all of it, and filters come after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from deltaworks.tables.features import has_vectors


def rows_of(table: DeltaTable, *, columns: Sequence[str] | None = None, filters: Any = None) -> pa.Table:
    """The rows of the open table that `filters`, an expression of pyarrow, lets through."""
    wanted = list(columns) if columns else None
    if not has_vectors(table):
        return table.to_pyarrow_dataset().to_table(columns=wanted, filter=filters)
    return ds.Scanner.from_batches(_batches(table), columns=wanted, filter=filters).to_table()


def relation_of(table: DeltaTable) -> Any:
    """The open table as something DuckDB can register, and scan as often as it likes."""
    return _Marked(table) if has_vectors(table) else table.to_pyarrow_dataset()


class _Marked:
    """A table with deletion vectors; each scan reads it anew."""

    def __init__(self, table: DeltaTable) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return _batches(self._table).__arrow_c_stream__(requested_schema)


def _batches(table: DeltaTable) -> pa.RecordBatchReader:
    # Texts come as views, which pyarrow's filters do not know.
    return pa.RecordBatchReader.from_stream(table.scan()).cast(pa.schema(table.schema().to_arrow()))
