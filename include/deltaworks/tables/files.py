"""Reads and writes Parquet files of a Delta table, and builds their add actions with statistics."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction
from pyarrow import fs

from deltaworks.tables.statistics import DEFAULT_COLUMNS, IndexedColumns, statistics

#: Number of rows sampled to decide on dictionary encoding, and the minimum average repetitions of a value in the
#: sample.
_SAMPLED_ROWS, _MIN_REPETITIONS = 256, 4
MAX_BATCH_ROWS: Final = 65_536
#: Files up to this size are read with one request.
_SINGLE_REQUEST_BYTES: Final = 32 << 20
INT96_UNIT: Final = "us"
Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data file as recorded in a prepared batch. Values in `partition` are text, None for null."""

    path: str
    size: int
    rows: int
    partition: dict[str, str | None]
    stats: str

    def add_action(self) -> AddAction:
        """Returns the add action for delta-rs."""
        return AddAction(
            path=self.path,
            size=self.size,
            partition_values=self.partition,
            modification_time=int(time.time() * 1000),
            data_change=True,
            stats=self.stats,
        )

    def to_add_fields(self, *, at_ms: int, data_change: bool) -> dict[str, Any]:
        """Returns the fields of the add action as written in the log, with a URL-encoded path.

        Args:
            at_ms: modification time, milliseconds since 1970.
            data_change: False if the rows equal those of the files that the commit removes.
        """
        return {
            "path": quote(self.path, safe="/=~"),
            "partitionValues": self.partition,
            "size": self.size,
            "modificationTime": at_ms,
            "dataChange": data_change,
            "stats": self.stats,
        }


def data_file_path(partition: Mapping[str, str | None], *, prefix: str = "part") -> str:
    """Returns a new unique path for a data file, relative to the table, with Hive-style partition folders."""
    folders = [f"{name}={_partition_folder(value)}" for name, value in partition.items()]
    return "/".join([*folders, f"{prefix}-{uuid.uuid4()}.zstd.parquet"])


def _partition_folder(value: str | None) -> str:
    """Returns the folder name for a partition value. A value with special characters is hashed, so that paths need no
    escaping; readers take the value from the log.
    """
    if value is None:
        return "__HIVE_DEFAULT_PARTITION__"
    if re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", value):
        return value
    return "~" + hashlib.blake2b(value.encode(), digest_size=8).hexdigest()


def write_file(
    filesystem: fs.FileSystem,
    root: str,
    data: pa.Table,
    *,
    partition: Mapping[str, str | None],
    indexed: IndexedColumns = DEFAULT_COLUMNS,
) -> WrittenFile:
    """Writes `data` without its partition columns as one file below `root`.

    Args:
        root: the table's folder as a path of `filesystem` (bucket/key, or an absolute path).
        indexed: columns that get statistics.
    """
    body = data.drop_columns(list(partition)) if partition else data
    return write_file_body(filesystem, root, body, partition=partition, indexed=indexed)


def write_file_body(
    filesystem: fs.FileSystem,
    root: str,
    body: pa.Table,
    *,
    partition: Mapping[str, str | None],
    indexed: IndexedColumns = DEFAULT_COLUMNS,
) -> WrittenFile:
    """Writes rows that have no partition columns as one file. See `write_file`."""
    path = data_file_path(partition)
    destination = f"{root}/{path}"
    if isinstance(filesystem, fs.LocalFileSystem):
        filesystem.create_dir(destination.rpartition("/")[0], recursive=True)
    buffer, stats = encode_parquet(body, indexed)
    with filesystem.open_output_stream(destination) as stream:
        stream.write(buffer)
    return WrittenFile(path=path, size=buffer.size, rows=body.num_rows, partition=dict(partition), stats=stats)


def encode_parquet(body: pa.Table, indexed: IndexedColumns = DEFAULT_COLUMNS) -> tuple[pa.Buffer, str]:
    """Encodes rows as a Parquet file. Returns the file's bytes and its statistics."""
    sink = pa.BufferOutputStream()
    options: dict[str, Any] = {"compression": "zstd", "compression_level": 1, "version": "2.6"}
    pq.write_table(body, sink, write_statistics=True, use_dictionary=_dictionary_columns(body), **options)
    return sink.getvalue(), statistics(body, indexed)


def _dictionary_columns(body: pa.Table) -> list[str]:
    """Returns the string columns to encode with a dictionary: those whose values repeat in a sample.

    Such columns become smaller and faster to read. Numbers and timestamps gain nothing, and distinct strings become
    larger.
    """
    names = []
    for field in body.schema:
        if pa.types.is_string(field.type):
            sample = body.column(field.name).slice(0, _SAMPLED_ROWS)
            if len(pc.unique(sample)) * _MIN_REPETITIONS <= len(sample):
                names.append(field.name)
    return names


@contextlib.contextmanager
def open_data_file(
    filesystem: fs.FileSystem, path: str, size: int, *, single_request_bytes: int = _SINGLE_REQUEST_BYTES
) -> Iterator[pa.NativeFile]:
    """Opens a data file of this size. A small file is read with one request; its columns would take one request each.

    Args:
        single_request_bytes: maximum size of a small file.

    Raises:
        OSError: the file cannot be read.
    """
    with filesystem.open_input_file(path) as source:
        yield source if size > single_request_bytes else pa.BufferReader(source.read_buffer())


def open_parquet(source: Any, **options: Any) -> pq.ParquetFile:
    """Opens a Parquet file for reading: every reader opens files here.

    INT96 is read in microseconds: in nanoseconds, Arrow's default, years outside 1678 to 2261 become other years.

    Args:
        options: of `pyarrow.parquet.ParquetFile`.

    Raises:
        ArrowInvalid, OSError: it is no Parquet file, or its footer is unreadable.
    """
    return pq.ParquetFile(source, coerce_int96_timestamp_unit=INT96_UNIT, **options)


def read_parquet(source: Any, *, columns: Sequence[str] | None = None) -> pa.Table:
    """Reads the rows of a Parquet file, without string views. Columns that the file lacks are omitted."""
    file = open_parquet(source, pre_buffer=True)
    if columns is None:
        return without_views(file.read())
    present = [name for name in columns if name in file.schema_arrow.names]
    return without_views(file.read(present)).select(present)


def parquet_batches(
    source: Any,
    *,
    dictionary_encoded: bool = False,
    columns: Sequence[str] | None = None,
    batch_rows: int = MAX_BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of an open Parquet file in batches; top-level texts are dictionary-encoded if requested.

    A dictionary is complete, including entries that no row uses.
    """
    file = open_parquet(source)
    if dictionary_encoded:
        texts = [field.name for field in file.schema_arrow if pa.types.is_string(field.type)]
        file = open_parquet(source, read_dictionary=texts)
    for batch in file.iter_batches(batch_size=batch_rows, columns=None if columns is None else list(columns)):
        yield without_views(batch)


def without_views(rows: Rows) -> Rows:
    """Casts the string views that delta-rs writes, which pyarrow supports neither in filter nor in take."""
    fields = [field.with_type(_without_view_type(field.type)) for field in rows.schema]
    return rows if fields == list(rows.schema) else rows.cast(pa.schema(fields, rows.schema.metadata))


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


def partition_value_text(value: Any) -> str | None:
    """Converts a partition value to text as in the Delta log. An empty string becomes null, as in Spark."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, dt.date) else str(value)


def split_by_partition(data: pa.Table, partition_by: Sequence[str]) -> list[tuple[dict[str, str | None], pa.Table]]:
    """Splits rows into one table per combination of partition values. Empty strings count as null, as in Spark."""
    if not partition_by:
        return [({}, data)]
    for name in partition_by:
        if pa.types.is_string(data.schema.field(name).type):
            column = data.column(name)
            with_nulls = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
            data = data.set_column(data.schema.get_field_index(name), name, with_nulls)
    order, starts = group_rows(data, partition_by)
    values = data.select(list(partition_by)).take(pa.array(order[starts])).to_pylist()
    texts = [{name: partition_value_text(value[name]) for name in partition_by} for value in values]
    if len(texts) <= 1:
        return [(text, data) for text in texts]
    sorted_rows = data.take(pa.array(order))
    ends = [*starts[1:].tolist(), data.num_rows]
    return [
        (text, sorted_rows.slice(start, end - start))
        for text, start, end in zip(texts, starts.tolist(), ends, strict=True)
    ]


def group_rows(
    rows: pa.Table, columns: Sequence[str], *, max_rows: int | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Sorts rows by these columns. Returns the row order, and the start of each group of equal rows in it.

    Rows keep their order within a group. Null counts as a value of its own. Without rows there are no groups.

    Args:
        max_rows: maximum rows per group; larger groups are split.
    """
    codes = np.zeros(rows.num_rows, dtype=np.int64)
    for name in columns:
        encoded = pc.dictionary_encode(rows.column(name).combine_chunks(), null_encoding="encode")
        indices = np.asarray(encoded.indices, dtype=np.int64)
        # Renumbering after each column keeps codes below the number of rows, so their product does not overflow.
        _, codes = np.unique(codes * len(encoded.dictionary) + indices, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    sorted_codes = codes[order]
    starts = np.flatnonzero(np.append([True], sorted_codes[1:] != sorted_codes[:-1])[: len(order)])
    if max_rows is not None and len(starts):
        ends = np.append(starts[1:], len(order))
        starts = np.concatenate([np.arange(start, end, max_rows) for start, end in zip(starts, ends, strict=True)])
    return order, starts
