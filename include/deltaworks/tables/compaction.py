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
from deltaworks.tables.files import WrittenFile, whole_file, write_body
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import lies_elsewhere
from deltaworks.tables.rearrangement import Rearranged, commit_rearranged
from deltaworks.tables.statistics import IndexedColumns

#: The most bytes of small files in a partition that is compacted here.
BYTES_PER_PARTITION = 32 << 20
#: The most memory that the rows of a partition may take.
MEMORY_BYTES = 256 << 20
#: Objects are small, so reading many of them is latency and nothing else.
_READERS = 8
_ROWS_AT_ONCE = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOutcome:
    """The partitions that were compacted, those another writer has overtaken, and those left to Spark, with why."""

    version: int | None = None
    compacted: tuple[Partition, ...] = ()
    overtaken: tuple[Partition, ...] = ()
    left: Mapping[Partition, str] = field(default_factory=dict)


class _Left(Exception):
    """A partition that cannot be compacted here; the text is the reason."""


def compact_partitions(
    lake: Lake,
    objects: ObjectStore,
    key: str,
    partitions: Sequence[Partition] | None,
    *,
    below_bytes: int,
    user_metadata: str,
    fewest: int = 2,
    most_bytes: int | None = None,
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
    opened = lake.open(key)
    if opened is None:
        return CompactionOutcome()
    reasons = reasons_against_compacting(opened)
    if reasons:
        return CompactionOutcome(left=dict.fromkeys(partitions or (), ", ".join(reasons)))
    files = {
        place: members if most_bytes is None else _oldest(members, most_bytes)
        for place, members in _small_files(opened, partitions, below_bytes).items()
        if len(members) >= fewest
    }
    rewriter = _Rewriter(lake, key, opened)
    rearranged: list[Rearranged] = []
    left: dict[Partition, str] = {}
    for partition, members in files.items():
        try:
            rearranged.append(rewriter.rewrite(partition, members))
        except _Left as reason:
            left[partition] = str(reason)
    if not rearranged:
        return CompactionOutcome(left=left)
    outcome = commit_rearranged(
        lake,
        objects,
        key,
        rearranged,
        read_version=opened.version(),
        user_metadata=user_metadata,
        parameters={"predicate": "[]", "zOrderBy": "[]", "auto": "false"},
        before_commit=before_commit,
    )
    rewriter.remove(file for one in outcome.overtaken for file in one.written)
    return CompactionOutcome(
        version=outcome.version,
        compacted=tuple(one.partition for one in outcome.landed),
        overtaken=tuple(one.partition for one in outcome.overtaken),
        left=left,
    )


@dataclass(frozen=True, slots=True)
class _Member:
    """A file to be merged: its path as the log has it, its bytes, and its rows where the log says."""

    path: str
    size: int
    rows: int | None


def _small_files(
    opened: DeltaTable, partitions: Sequence[Partition] | None, below_bytes: int
) -> dict[Partition, list[_Member]]:
    """The small files of each of the partitions that has two or more, the oldest first."""
    adds = pa.table(opened.get_add_actions(flatten=False))
    rows = adds.column("num_records").to_pylist() if "num_records" in adds.column_names else [None] * adds.num_rows
    columns = (adds.column(name).to_pylist() for name in ("path", "size_bytes", "modification_time"))
    selected = None if partitions is None else set(partitions)
    members: dict[Partition, list[tuple[int, _Member]]] = {}
    for place, path, size, at, count in zip(partitions_of(adds), *columns, rows, strict=True):
        if size < below_bytes and (selected is None or place in selected):
            members.setdefault(place, []).append((at, _Member(path, size, count)))
    return {
        place: [member for _, member in sorted(files, key=lambda file: (file[0], file[1].path))]
        for place, files in sorted(members.items(), key=str)
        if len(files) > 1
    }


def _oldest(members: list[_Member], most_bytes: int) -> list[_Member]:
    """The first of them that have no more bytes together; two at least."""
    ends = accumulate(member.size for member in members)
    return members[: max(2, sum(end <= most_bytes for end in ends))]


class _Rewriter:
    """Reads and writes files of one table as it is at one version."""

    def __init__(self, lake: Lake, key: str, opened: DeltaTable) -> None:
        self._lake = lake
        self._root = arrow_path(lake.storage, key)
        apart = frozenset(opened.metadata().partition_columns)
        self._apart = apart
        columns = pa.schema(opened.schema().to_arrow())
        self._columns = pa.schema([column for column in columns if column.name not in apart])
        self._indexed = IndexedColumns.of(opened.metadata().configuration)

    def rewrite(self, partition: Partition, members: Sequence[_Member]) -> Rearranged:
        """Write the rows of these files as one."""
        if sum(member.size for member in members) > BYTES_PER_PARTITION:
            raise _Left(f"its small files have more than {BYTES_PER_PARTITION:,} bytes")
        body = pa.Table.from_batches(list(self._batches(members)), schema=self._columns)
        values = dict(partition)
        file = write_body(self._lake.filesystem, self._root, body, partition=values, indexed=self._indexed)
        return Rearranged(partition=partition, taken={member.path: member.size for member in members}, written=(file,))

    def remove(self, files: Iterator[WrittenFile]) -> None:
        """Delete files that no commit names. One that stays is an orphan, which maintenance removes."""
        for file in files:
            with contextlib.suppress(OSError):
                self._lake.filesystem.delete_file(f"{self._root}/{file.path}")

    def _batches(self, members: Sequence[_Member]) -> Iterator[pa.RecordBatch]:
        memory = _Memory(MEMORY_BYTES)
        with ThreadPoolExecutor(_READERS) as pool:
            for batches in pool.map(lambda member: self._read(member, memory), members):
                yield from batches

    def _read(self, member: _Member, memory: _Memory) -> list[pa.RecordBatch]:
        if lies_elsewhere(member.path):
            raise _Left("a file of another table is part of it")
        try:
            file = whole_file(self._lake.filesystem, f"{self._root}/{unquote(member.path)}")
        except (OSError, pa.ArrowInvalid) as error:
            raise _Left(f"{member.path} cannot be read: {error}"[:300]) from error
        if member.rows is not None and member.rows != file.metadata.num_rows:
            raise _Left(f"{member.path} has {file.metadata.num_rows:,} rows, and its log says {member.rows:,}")
        batches = []
        for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
            memory.take(batch.nbytes)
            batches.append(_as_declared(batch, self._columns, apart=self._apart))
        return batches


class _Memory:
    """A bound on what is held at once, shared by the threads that read."""

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Take so many bytes, or raise."""
        with self._lock:
            self._left -= size
            if self._left < 0:
                raise _Left(f"its rows take more than {MEMORY_BYTES:,} bytes of memory")


def _as_declared(batch: pa.RecordBatch, columns: pa.Schema, *, apart: frozenset[str]) -> pa.RecordBatch:
    """The rows with the table's columns as they are now: what an older file lacks is null.

    Args:
        apart: the partition columns, which Spark may write into files too; the log has their value.
    """
    unknown = set(batch.schema.names) - set(columns.names) - apart
    if unknown:
        raise _Left(f"a file has columns that the table lacks: {', '.join(sorted(unknown))}")
    arrays = []
    for column in columns:
        index = batch.schema.get_field_index(column.name)
        try:
            arrays.append(
                pa.nulls(batch.num_rows, column.type) if index < 0 else as_type(batch.column(index), column.type)
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise _Left(f"{column.name} of an older file is no {column.type}: {error}"[:300]) from error
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def as_type(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values as another type of the same meaning; fields that a struct lacks are null.

    Raises:
        ArrowInvalid, ArrowNotImplementedError, ArrowTypeError: a value, or a field, would be lost.
    """
    if values.type == kind:
        return values
    if pa.types.is_struct(kind) and pa.types.is_struct(values.type):
        return _as_struct(values, kind)
    return values.cast(kind)


def _as_struct(values: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    names = {kind.field(index).name for index in range(kind.num_fields)}
    lost = {values.type.field(index).name for index in range(values.type.num_fields)} - names
    if lost:
        raise pa.ArrowInvalid(f"a file has fields that the table lacks: {', '.join(sorted(lost))}")
    children = []
    for index in range(kind.num_fields):
        child = kind.field(index)
        at = values.type.get_field_index(child.name)
        children.append(
            pa.nulls(len(values), child.type) if at < 0 else as_type(pc.struct_field(values, [at]), child.type)
        )
    fields = [kind.field(index) for index in range(kind.num_fields)]
    return pa.StructArray.from_arrays(children, fields=fields, mask=values.is_null())
