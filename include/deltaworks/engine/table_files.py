"""Files of tables as tasks write them: where they go, as it travels to the tasks, and how rows become files."""

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

#: What a task holds in Arrow at most, however many tables there are and however skewed the routing is.
FLUSH_BYTES = 256 << 20
#: What a table holds in Arrow before its rows are written: files of a tenth to a third of that.
FILE_BYTES = 128 << 20
WRITE_THREADS = 4


@dataclass(frozen=True, slots=True)
class FileTarget:
    """Where a task writes: pyarrow's options of the storage and the folder of each table.

    `arrow_options` holds keys: it travels to tasks inside Spark's serialised closure and is never printed.
    `indexed` says which columns have statistics, for tables that do not keep to Delta's default.
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
        """Folders of a storage, by the names of the tables whose files they take."""
        options = None if storage.scheme == "file" else storage.arrow_options()
        roots = {name: arrow_path(storage, folder) for name, folder in folders.items()}
        return cls(options, roots, dict(partition_by), dict(indexed or {}))

    def filesystem(self) -> fs.FileSystem:
        """pyarrow's filesystem; local disk where there are no options."""
        return fs.LocalFileSystem() if self.arrow_options is None else fs.S3FileSystem(**self.arrow_options)


def check_writable(target: FileTarget, table: str, rows: pa.Table) -> None:
    """Do everything to rows that writing them does, but write them.

    Raises:
        Exception: what writing them would raise for what is in them.
    """
    for values, part in split_by_partition(rows, target.partition_by[table]):
        data_file_path(values)
        encode_parquet(part.drop_columns(list(values)), target.indexed.get(table, DEFAULT_COLUMNS))


class TableWriters:
    """Gathers rows by table and writes them as files. Not safe to share between threads.

    A table that holds `file_bytes` is written on its own: its files roll. Where all tables together hold `flush_bytes`,
    the largest are written until half of that is left, so that a hundred small tables do not pay for one hot one.
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
        """Take rows; writes out what has grown too large."""
        self._buffers.setdefault(table, []).append(rows)
        self._bytes[table] = self._bytes.get(table, 0) + rows.nbytes
        self.buffered_bytes += rows.nbytes
        if self._bytes[table] >= self._file_bytes:
            self._flush([table])
        if self.buffered_bytes >= self._flush_bytes:
            self._flush(self._largest())

    def _largest(self) -> list[str]:
        """The fewest tables that leave no more than half of the bound held, the largest first."""
        tables, remaining_bytes = [], self.buffered_bytes
        for table in sorted(self._bytes, key=lambda name: -self._bytes[name]):
            if remaining_bytes <= self._flush_bytes // 2:
                break
            tables.append(table)
            remaining_bytes -= self._bytes[table]
        return tables

    def flush(self) -> None:
        """Write all rows held."""
        self._flush(list(self._buffers))

    def _flush(self, tables: Sequence[str]) -> None:
        """Write these tables, several files at once; what is cut into partitions at a time is bounded too."""
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
