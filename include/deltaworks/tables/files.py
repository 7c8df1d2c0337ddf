"""Parquet files of a Delta table, written by us: one file with its add action, statistics included."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction
from pyarrow import fs

from deltaworks.tables.statistics import DEFAULT_COLUMNS, IndexedColumns, statistics

#: Values that are looked at to tell whether a dictionary pays, and how often each has to come among them.
_SAMPLED_ROWS, _MIN_REPETITIONS = 256, 4


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """One data file, as a prepared batch records it. `partition` values are strings, None for null."""

    path: str
    size: int
    rows: int
    partition: dict[str, str | None]
    stats: str

    def add_action(self) -> AddAction:
        """The action that makes the file part of the table."""
        return AddAction(
            path=self.path,
            size=self.size,
            partition_values=self.partition,
            modification_time=int(time.time() * 1000),
            data_change=True,
            stats=self.stats,
        )

    def to_add_fields(self, *, at_ms: int, data_change: bool) -> dict[str, Any]:
        """The fields of the same action as a commit's file has them, whose paths are URLs.

        Args:
            at_ms: when it was written, milliseconds since 1970.
            data_change: whether its rows are others than those of the files that the commit takes out.
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
    """A new, unique path below the table's root, Hive-style for its partition."""
    folders = [f"{name}={_partition_folder(value)}" for name, value in partition.items()]
    return "/".join([*folders, f"{prefix}-{uuid.uuid4()}.zstd.parquet"])


def _partition_folder(value: str | None) -> str:
    """A folder name for a partition value. Readers take values from the log, so an awkward one is just hashed:
    that way no client's idea of escaping in paths matters."""
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
    """Write `data`, without its partition columns, as one file below `root`.

    Args:
        root: the table's folder in terms of `filesystem` (bucket/key, or an absolute path).
        indexed: which columns the table keeps statistics of.
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
    """`write_file` of rows that come without their partition columns."""
    path = data_file_path(partition)
    destination = f"{root}/{path}"
    if isinstance(filesystem, fs.LocalFileSystem):
        filesystem.create_dir(destination.rpartition("/")[0], recursive=True)
    buffer, stats = encode_parquet(body, indexed)
    with filesystem.open_output_stream(destination) as stream:
        stream.write(buffer)
    return WrittenFile(path=path, size=buffer.size, rows=body.num_rows, partition=dict(partition), stats=stats)


def encode_parquet(body: pa.Table, indexed: IndexedColumns = DEFAULT_COLUMNS) -> tuple[pa.Buffer, str]:
    """Rows as the bytes of a file, and the file's statistics."""
    sink = pa.BufferOutputStream()
    options: dict[str, Any] = {"compression": "zstd", "compression_level": 1, "version": "2.6"}
    pq.write_table(body, sink, write_statistics=True, use_dictionary=_dictionary_columns(body), **options)
    return sink.getvalue(), statistics(body, indexed)


def _dictionary_columns(body: pa.Table) -> list[str]:
    """The columns whose values come again and again, by a look at the first: texts, which they make smaller and sooner
    read. Numbers and times are as small without, and texts of which each is another larger with."""
    names = []
    for field in body.schema:
        if pa.types.is_string(field.type):
            sample = body.column(field.name).slice(0, _SAMPLED_ROWS)
            if len(pc.unique(sample)) * _MIN_REPETITIONS <= len(sample):
                names.append(field.name)
    return names


def read_parquet_file(filesystem: fs.FileSystem, path: str) -> pq.ParquetFile:
    """A small file, read by one request: each of its columns would be another one.

    Raises:
        OSError, ArrowInvalid: it cannot be read.
    """
    with filesystem.open_input_stream(path) as source:
        data = source.read()
    return pq.ParquetFile(pa.BufferReader(data), coerce_int96_timestamp_unit="us")


def partition_value_text(value: Any) -> str | None:
    """A partition value as the Delta log writes it. It has no word for an empty text: that is null, as Spark has it."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, dt.date) else str(value)


def split_by_partition(data: pa.Table, partition_by: Sequence[str]) -> list[tuple[dict[str, str | None], pa.Table]]:
    """The rows of each partition value, in one table each. An empty text goes with the nulls, as in Spark."""
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
    """The rows' order with equal ones together, each group's in the order they had, and where in it groups begin.

    Null is a value like others. No rows have no groups.

    Args:
        most: rows of a group at most; what is larger is cut.
    """
    codes = np.zeros(rows.num_rows, dtype=np.int64)
    for name in columns:
        encoded = pc.dictionary_encode(rows.column(name).combine_chunks(), null_encoding="encode")
        indices = np.asarray(encoded.indices, dtype=np.int64)
        # Renumbered after each column, the codes stay below the number of rows and their product fits.
        _, codes = np.unique(codes * len(encoded.dictionary) + indices, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    sorted_codes = codes[order]
    starts = np.flatnonzero(np.append([True], sorted_codes[1:] != sorted_codes[:-1])[: len(order)])
    if max_rows is not None and len(starts):
        ends = np.append(starts[1:], len(order))
        starts = np.concatenate([np.arange(start, end, max_rows) for start, end in zip(starts, ends, strict=True)])
    return order, starts
