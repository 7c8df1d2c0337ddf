"""Reads and rewrites data files of one table, in batches that fit into memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from deltaworks.errors import ContractError
from deltaworks.tables.arrow_types import rows_as_declared
from deltaworks.tables.deletion_vector_format import deleted_positions
from deltaworks.tables.files import write_file_body
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import Action, TableState, is_absolute_path, parse_schema_string
from deltaworks.tables.statistics import IndexedColumns

_MAX_BATCH_ROWS: Final = 65_536
#: Maximum size of a written file in memory. OPTIMIZE merges the files later.
_MAX_FILE_BYTES: Final = 128 << 20


class TableFiles:
    """The files of a table at one version. Not thread-safe."""

    def __init__(self, lake: Lake, state: TableState) -> None:
        self._lake = lake
        self._root = arrow_path(lake.storage, state.key)
        self._key = state.key
        declared = parse_schema_string(state.metadata["schemaString"])
        partition_columns = set(state.metadata.get("partitionColumns") or ())
        self._columns = pa.schema([column for column in declared if column.name not in partition_columns])
        self._indexed = IndexedColumns.of(state.configuration)

    def read(self, added: Action, *, dictionary_encoded: bool = False) -> Iterator[pa.RecordBatch]:
        """Yields the rows of an added file, with the columns it contains.

        Args:
            dictionary_encoded: return texts as dictionary codes, each distinct text once.

        Raises:
            ContractError: ERASURE_FILE_SHARED, it belongs to another table; ERASURE_FILE_DAMAGED.
        """
        for batch, alive in self.read_with_deleted(added, dictionary_encoded=dictionary_encoded):
            yield batch if alive is None else batch.filter(pa.array(alive))

    def read_with_deleted(
        self, added: Action, *, dictionary_encoded: bool = False
    ) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.bool_] | None]]:
        """Yields the rows of an added file, including rows deleted by a deletion vector.

        Each batch has a mask of the rows that are not deleted; None if none is deleted. Arguments and errors as in
        `read`.
        """
        if is_absolute_path(added["path"]):
            raise ContractError(
                "ERASURE_FILE_SHARED",
                f"{self._key} has a file with an absolute path, which belongs to another table too.",
            )
        marked = deleted_positions(self._lake, self._key, added)
        position = 0
        for batch in self._read_batches(added, dictionary_encoded):
            following = position + batch.num_rows
            yield batch, _alive_mask(marked, position, following) if len(marked) else None
            position = following

    def _read_batches(self, added: Action, dictionary_encoded: bool) -> Iterator[pa.RecordBatch]:
        path = f"{self._root}/{unquote(added['path'])}"
        try:
            with self._lake.filesystem.open_input_file(path) as source:
                yield from parquet_batches(source, dictionary_encoded=dictionary_encoded)
        except (OSError, pa.ArrowInvalid) as error:
            raise ContractError(
                "ERASURE_FILE_DAMAGED",
                f"{self._key}/{added['path']} cannot be read, so the owners of its rows are unknown: {error}"[:400]
                + ".",
            ) from error

    def write(self, added: Action, parts: Iterable[pa.RecordBatch]) -> list[Action]:
        """Writes rows of an added file to new files of its partition; returns their add actions."""
        values = dict(added.get("partitionValues") or {})
        batches = (rows_as_declared(batch, self._columns) for batch in parts)
        return [self._write_file(values, rows) for rows in _group_by_size(batches)]

    def discard(self, written: Iterable[Action]) -> None:
        """Deletes written files that were not committed."""
        for added in written:
            self._lake.filesystem.delete_file(f"{self._root}/{unquote(added['path'])}")

    def _write_file(self, values: dict[str, Any], rows: pa.Table) -> Action:
        file = write_file_body(self._lake.filesystem, self._root, rows, partition=values, indexed=self._indexed)
        return file.to_add_fields(at_ms=int(time.time() * 1000), data_change=True)


def parquet_batches(
    source: Any, *, dictionary_encoded: bool = False, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of an open Parquet file in batches; top-level texts are dictionary-encoded if requested.

    A dictionary is complete, including entries that no row uses.
    """
    file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
    if dictionary_encoded:
        texts = [field.name for field in file.schema_arrow if pa.types.is_string(field.type)]
        file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us", read_dictionary=texts)
    for batch in file.iter_batches(batch_size=_MAX_BATCH_ROWS, columns=None if columns is None else list(columns)):
        yield _without_views(batch)


def _without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Casts the string views that delta-rs writes, which pyarrow supports neither in filter nor in take."""
    fields = [field.with_type(_without_view_type(field.type)) for field in batch.schema]
    return batch if fields == list(batch.schema) else batch.cast(pa.schema(fields))


def _without_view_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_view_type(field.type)) for field in kind.fields])
    if pa.types.is_map(kind):
        return pa.map_(_without_view_type(kind.key_type), _without_view_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_view_type(kind.value_type)))
    return kind


def _alive_mask(marked: npt.NDArray[np.int64], first: int, end: int) -> npt.NDArray[np.bool_]:
    deleted = marked[(marked >= first) & (marked < end)] - first
    alive = np.ones(end - first, dtype=np.bool_)
    alive[deleted] = False
    return alive


def _group_by_size(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        pending.append(batch)
        size += batch.nbytes
        if size >= _MAX_FILE_BYTES:
            yield pa.Table.from_batches(pending)
            pending, size = [], 0
    if pending:
        yield pa.Table.from_batches(pending)
