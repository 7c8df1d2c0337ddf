"""Merges the small files of small partitions in this process: a night over small tables needs no JVM, nor does a stream
that keeps the files few which its gold is built from.

The rows of a partition's small files are read, brought to the table's columns as they are now, and written as one file
with the statistics that the table keeps; many partitions share a commit (`tables.rearrangement`). What this cannot do
is left as it is, with the reason, for Spark: a partition that takes more memory than MEMORY_BYTES, a column whose
older files do not fit its type, a file that cannot be read or does not have the rows its log says.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from deltaworks.control.objects import ObjectStore
from deltaworks.tables.changes import Partition, partitions_of
from deltaworks.tables.features import reasons_against_compacting
from deltaworks.tables.files import WrittenFile, read_parquet_file, write_file_body
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import is_absolute_path
from deltaworks.tables.optimize_commit import RewrittenFiles, commit_optimize
from deltaworks.tables.statistics import IndexedColumns

#: The most bytes of small files in a partition that is compacted here.
MAX_BYTES_PER_PARTITION = 32 << 20
#: The most memory that the rows of a partition may take.
MAX_MEMORY_BYTES = 256 << 20
#: Objects are small, so reading many of them is latency and nothing else.
_READ_THREADS = 8
_BATCH_ROWS = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOutcome:
    """The partitions that were compacted, those another writer has overtaken, and those left to Spark, with why."""

    version: int | None = None
    compacted: tuple[Partition, ...] = ()
    conflicting: tuple[Partition, ...] = ()
    unsupported: Mapping[Partition, str] = field(default_factory=dict)


class _UnsupportedPartition(Exception):
    """A partition that cannot be compacted here; the text is the reason."""


def compact_partitions(
    lake: Lake,
    objects: ObjectStore,
    key: str,
    partitions: Sequence[Partition] | None,
    *,
    below_bytes: int,
    user_metadata: str,
    min_files: int = 2,
    max_bytes: int | None = None,
    before_commit: Callable[[], None] = lambda: None,
) -> CompactionOutcome:
    """Merge the files below `below_bytes` of each of these partitions into one, all in one commit. Changes no row.

    Idempotent: a partition with fewer than `fewest` such files is passed over. Safe beside every writer: appends are no
    conflict, and a partition whose files another writer has replaced meanwhile is left to another time. Files of other
    partitions are neither read nor touched.

    Args:
        partitions: None for all.
        most_bytes: of each partition, the oldest such files that have no more bytes, two at least. Without it all.
        before_commit: called before each attempt to commit; what it raises ends the work, with nothing committed.
    """
    table = lake.open(key)
    if table is None:
        return CompactionOutcome()
    reasons = reasons_against_compacting(table)
    if reasons:
        return CompactionOutcome(unsupported=dict.fromkeys(partitions or (), ", ".join(reasons)))
    files = {
        place: members if max_bytes is None else _oldest_up_to(members, max_bytes)
        for place, members in _small_files(table, partitions, below_bytes).items()
        if len(members) >= min_files
    }
    rewriter = _Rewriter(lake, key, table)
    rewrites: list[RewrittenFiles] = []
    unsupported: dict[Partition, str] = {}
    for partition, members in files.items():
        try:
            rewrites.append(rewriter.rewrite(partition, members))
        except _UnsupportedPartition as reason:
            unsupported[partition] = str(reason)
    if not rewrites:
        return CompactionOutcome(unsupported=unsupported)
    outcome = commit_optimize(
        lake,
        objects,
        key,
        rewrites,
        read_version=table.version(),
        user_metadata=user_metadata,
        parameters={"predicate": "[]", "zOrderBy": "[]", "auto": "false"},
        before_commit=before_commit,
    )
    rewriter.remove(file for one in outcome.conflicting for file in one.added_files)
    return CompactionOutcome(
        version=outcome.version,
        compacted=tuple(one.partition for one in outcome.committed),
        conflicting=tuple(one.partition for one in outcome.conflicting),
        unsupported=unsupported,
    )


@dataclass(frozen=True, slots=True)
class _SmallFile:
    """A file to be merged: its path as the log has it, its bytes, and its rows where the log says."""

    path: str
    size: int
    rows: int | None


def _small_files(
    table: DeltaTable, partitions: Sequence[Partition] | None, below_bytes: int
) -> dict[Partition, list[_SmallFile]]:
    """The small files of each of the partitions that has two or more, the oldest first."""
    add_actions = pa.table(table.get_add_actions(flatten=False))
    rows = (
        add_actions.column("num_records").to_pylist()
        if "num_records" in add_actions.column_names
        else [None] * add_actions.num_rows
    )
    columns = (add_actions.column(name).to_pylist() for name in ("path", "size_bytes", "modification_time"))
    selected = None if partitions is None else set(partitions)
    files_by_partition: dict[Partition, list[tuple[int, _SmallFile]]] = {}
    for place, path, size, at, count in zip(partitions_of(add_actions), *columns, rows, strict=True):
        if size < below_bytes and (selected is None or place in selected):
            files_by_partition.setdefault(place, []).append((at, _SmallFile(path, size, count)))
    return {
        place: [member for _, member in sorted(files, key=lambda file: (file[0], file[1].path))]
        for place, files in sorted(files_by_partition.items(), key=str)
        if len(files) > 1
    }


def _oldest_up_to(files: list[_SmallFile], max_bytes: int) -> list[_SmallFile]:
    """The first of them that have no more bytes together; two at least."""
    cumulative_bytes = accumulate(member.size for member in files)
    return files[: max(2, sum(end <= max_bytes for end in cumulative_bytes))]


class _Rewriter:
    """Reads and writes files of one table as it is at one version."""

    def __init__(self, lake: Lake, key: str, table: DeltaTable) -> None:
        self._lake = lake
        self._root = arrow_path(lake.storage, key)
        partition_columns = frozenset(table.metadata().partition_columns)
        self._partition_columns = partition_columns
        columns = pa.schema(table.schema().to_arrow())
        self._columns = pa.schema([column for column in columns if column.name not in partition_columns])
        self._indexed = IndexedColumns.of(table.metadata().configuration)

    def rewrite(self, partition: Partition, small_files: Sequence[_SmallFile]) -> RewrittenFiles:
        """Write the rows of these files as one."""
        if sum(member.size for member in small_files) > MAX_BYTES_PER_PARTITION:
            raise _UnsupportedPartition(f"its small files have more than {MAX_BYTES_PER_PARTITION:,} bytes")
        body = pa.Table.from_batches(list(self._read_batches(small_files)), schema=self._columns)
        values = dict(partition)
        file = write_file_body(self._lake.filesystem, self._root, body, partition=values, indexed=self._indexed)
        return RewrittenFiles(
            partition=partition, removed_files={member.path: member.size for member in small_files}, added_files=(file,)
        )

    def remove(self, files: Iterator[WrittenFile]) -> None:
        """Delete files that no commit names. One that stays is an orphan, which maintenance removes."""
        for file in files:
            with contextlib.suppress(OSError):
                self._lake.filesystem.delete_file(f"{self._root}/{file.path}")

    def _read_batches(self, small_files: Sequence[_SmallFile]) -> Iterator[pa.RecordBatch]:
        budget = _MemoryBudget(MAX_MEMORY_BYTES)
        with ThreadPoolExecutor(_READ_THREADS) as pool:
            for batches in pool.map(lambda member: self._read_file(member, budget), small_files):
                yield from batches

    def _read_file(self, small_file: _SmallFile, budget: _MemoryBudget) -> list[pa.RecordBatch]:
        if is_absolute_path(small_file.path):
            raise _UnsupportedPartition("a file of another table is part of it")
        try:
            parquet = read_parquet_file(self._lake.filesystem, f"{self._root}/{unquote(small_file.path)}")
        except (OSError, pa.ArrowInvalid) as error:
            raise _UnsupportedPartition(f"{small_file.path} cannot be read: {error}"[:300]) from error
        if small_file.rows is not None and small_file.rows != parquet.metadata.num_rows:
            raise _UnsupportedPartition(
                f"{small_file.path} has {parquet.metadata.num_rows:,} rows, and its log says {small_file.rows:,}"
            )
        batches = []
        for batch in parquet.iter_batches(batch_size=_BATCH_ROWS):
            budget.reserve(batch.nbytes)
            batches.append(_conform_batch(batch, self._columns, partition_columns=self._partition_columns))
        return batches


class _MemoryBudget:
    """A bound on what is held at once, shared by the threads that read."""

    def __init__(self, max_bytes: int) -> None:
        self._free_bytes = max_bytes
        self._lock = threading.Lock()

    def reserve(self, size: int) -> None:
        """Take so many bytes, or raise."""
        with self._lock:
            self._free_bytes -= size
            if self._free_bytes < 0:
                raise _UnsupportedPartition(f"its rows take more than {MAX_MEMORY_BYTES:,} bytes of memory")


def _conform_batch(batch: pa.RecordBatch, columns: pa.Schema, *, partition_columns: frozenset[str]) -> pa.RecordBatch:
    """The rows with the table's columns as they are now: what an older file lacks is null.

    Args:
        apart: the partition columns, which Spark may write into files too; the log has their value.
    """
    unknown = set(batch.schema.names) - set(columns.names) - partition_columns
    if unknown:
        raise _UnsupportedPartition(f"a file has columns that the table lacks: {', '.join(sorted(unknown))}")
    arrays = []
    for column in columns:
        index = batch.schema.get_field_index(column.name)
        try:
            arrays.append(
                pa.nulls(batch.num_rows, column.type) if index < 0 else cast_values(batch.column(index), column.type)
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise _UnsupportedPartition(f"{column.name} of an older file is no {column.type}: {error}"[:300]) from error
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def cast_values(values: pa.Array, target_type: pa.DataType) -> pa.Array:
    """The same values as another type of the same meaning; fields that a struct lacks are null.

    Raises:
        ArrowInvalid, ArrowNotImplementedError, ArrowTypeError: a value, or a field, would be lost.
    """
    if values.type == target_type:
        return values
    if pa.types.is_struct(target_type) and pa.types.is_struct(values.type):
        return _cast_struct(values, target_type)
    return values.cast(target_type)


def _cast_struct(values: pa.StructArray, target_type: pa.StructType) -> pa.StructArray:
    names = {target_type.field(index).name for index in range(target_type.num_fields)}
    dropped_fields = {values.type.field(index).name for index in range(values.type.num_fields)} - names
    if dropped_fields:
        raise pa.ArrowInvalid(f"a file has fields that the table lacks: {', '.join(sorted(dropped_fields))}")
    children = []
    for index in range(target_type.num_fields):
        child = target_type.field(index)
        at = values.type.get_field_index(child.name)
        children.append(
            pa.nulls(len(values), child.type) if at < 0 else cast_values(pc.struct_field(values, [at]), child.type)
        )
    fields = [target_type.field(index) for index in range(target_type.num_fields)]
    return pa.StructArray.from_arrays(children, fields=fields, mask=values.is_null())
