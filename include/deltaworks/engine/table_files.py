"""Writes table files in Spark tasks: the serialized write location, and the buffers that become files."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyarrow import fs

from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.files import WrittenFile, data_file_path, encode_parquet, split_by_partition, write_file
from deltaworks.tables.lake import arrow_path
from deltaworks.tables.statistics import DEFAULT_COLUMNS, IndexedColumns

#: Maximum Arrow bytes that a task buffers for all tables together.
FLUSH_BYTES = 256 << 20
#: Arrow bytes of one table at which its buffer is written. The file has a tenth to a third of that size.
FILE_BYTES = 128 << 20
WRITE_THREADS = 4


@dataclass(frozen=True, slots=True)
class FileTarget:
    """Where a task writes: pyarrow options of the storage, and the folder of each table.

    Attributes:
        arrow_options: contain credentials; sent to tasks in Spark's serialized closure and never printed.
        indexed: statistics columns of the tables that do not use Delta's default.
    """

    arrow_options: dict[str, Any] | None
    roots: dict[str, str]
    partition_by: dict[str, tuple[str, ...]]
    indexed: dict[str, IndexedColumns] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        storage: StorageSpec,
        folders: Mapping[str, str],
        *,
        partition_by: Mapping[str, tuple[str, ...]],
        indexed: Mapping[str, IndexedColumns] | None = None,
    ) -> FileTarget:
        """Creates a target for these folders, by table name, of a storage."""
        options = None if storage.scheme == "file" else storage.arrow_options()
        roots = {name: arrow_path(storage, folder) for name, folder in folders.items()}
        return cls(options, roots, dict(partition_by), dict(indexed or {}))

    def filesystem(self) -> fs.FileSystem:
        """Returns the storage's pyarrow filesystem; the local one if there are no `arrow_options`."""
        return fs.LocalFileSystem() if self.arrow_options is None else fs.S3FileSystem(**self.arrow_options)


def check_writable(target: FileTarget, table: str, rows: pa.Table) -> None:
    """Encodes rows as Parquet without writing them.

    Raises:
        Exception: the error that writing these rows would raise.
    """
    for values, part in split_by_partition(rows, target.partition_by[table]):
        data_file_path(values)
        encode_parquet(part.drop_columns(list(values)), target.indexed.get(table, DEFAULT_COLUMNS))


class TableWriters:
    """Buffers rows by table and writes them as files. Not thread-safe.

    A table with `file_bytes` in its buffer is written immediately. When all buffers together reach `flush_bytes`, the
    largest ones are written until half of that remains. So many small tables keep their buffers next to one large
    table.
    """

    def __init__(self, target: FileTarget, *, flush_bytes: int = FLUSH_BYTES, file_bytes: int = FILE_BYTES) -> None:
        self._target = target
        self._filesystem = target.filesystem()
        self._flush_bytes = flush_bytes
        self._file_bytes = file_bytes
        self._buffers: dict[str, list[pa.Table]] = {}
        self._bytes: dict[str, int] = {}
        self.buffered_bytes = 0
        self.files: list[tuple[str, WrittenFile]] = []

    def add(self, table: str, rows: pa.Table) -> None:
        """Buffers rows and writes tables that exceed a limit."""
        self._buffers.setdefault(table, []).append(rows)
        self._bytes[table] = self._bytes.get(table, 0) + rows.nbytes
        self.buffered_bytes += rows.nbytes
        if self._bytes[table] >= self._file_bytes:
            self._flush([table])
        if self.buffered_bytes >= self._flush_bytes:
            self._flush(self._largest())

    def _largest(self) -> list[str]:
        """Returns the tables with the largest buffers, so that writing them leaves at most half of `flush_bytes`."""
        tables, remaining_bytes = [], self.buffered_bytes
        for table in sorted(self._bytes, key=lambda name: -self._bytes[name]):
            if remaining_bytes <= self._flush_bytes // 2:
                break
            tables.append(table)
            remaining_bytes -= self._bytes[table]
        return tables

    def flush(self) -> None:
        """Writes all buffered rows."""
        self._flush(list(self._buffers))

    def _flush(self, tables: Sequence[str]) -> None:
        """Writes the buffers of these tables, several files in parallel, in chunks that bound the memory for
        partitioned rows.
        """
        with ThreadPoolExecutor(WRITE_THREADS) as pool:
            work = (
                (table, values, part)
                for table in tables
                for values, part in split_by_partition(
                    pa.concat_tables(self._pop_buffer(table)), self._partition_by(table)
                )
            )
            while chunk := list(itertools.islice(work, 4 * WRITE_THREADS)):
                self.files.extend(pool.map(self._write, chunk))

    def _partition_by(self, table: str) -> tuple[str, ...]:
        return self._target.partition_by[table]

    def _pop_buffer(self, table: str) -> list[pa.Table]:
        self.buffered_bytes -= self._bytes.pop(table)
        return self._buffers.pop(table)

    def _write(self, work: tuple[str, dict[str, str | None], pa.Table]) -> tuple[str, WrittenFile]:
        table, values, rows = work
        indexed = self._target.indexed.get(table, DEFAULT_COLUMNS)
        written = write_file(self._filesystem, self._target.roots[table], rows, partition=values, indexed=indexed)
        return table, written
