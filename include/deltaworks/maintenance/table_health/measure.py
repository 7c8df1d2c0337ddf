"""Measures a table from its Delta log without a JVM: files, sizes, partitions, log, last operations."""

from __future__ import annotations

import datetime as dt
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from deltaworks.tables.changes import Partition, partitions_of
from deltaworks.tables.deletion_vectors import deleted_row_counts, read_last_checkpoint
from deltaworks.tables.features import reasons_against_compacting
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import LogSize, commit_history, log_size

#: Files below this size are small: opening one costs about as much as reading it.
SMALL_FILE_BYTES = 16 << 20
#: Upper bounds of the file size histogram; the last bucket is unbounded.
SIZE_BOUNDS = (1 << 20, 16 << 20, 64 << 20, 128 << 20, 256 << 20, 1 << 30)


@dataclass(frozen=True, slots=True)
class LastOperation:
    """The newest commit of one operation, such as WRITE, MERGE, OPTIMIZE or VACUUM END."""

    operation: str
    version: int
    at: dt.datetime
    run: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHealth:
    """The health of one partition. An unpartitioned table has one partition with an empty name.

    - `small_files`, `small_bytes`: files that OPTIMIZE would merge: below SMALL_FILE_BYTES, at least two.
    - `rows`: rows in the files; `deletion_vector_rows`: those of them that are marked as deleted. None if the log does
      not contain the numbers.
    """

    partition: Partition
    files: int
    bytes: int
    small_files: int
    small_bytes: int
    rows: int | None
    deletion_vector_rows: int | None
    newest_file_at: dt.datetime


@dataclass(frozen=True, slots=True)
class TableHealth:
    """The health of one version of a table.

    - `small_file_share`: the share of files that OPTIMIZE would merge: below SMALL_FILE_BYTES, at least two per
      partition.
    - `size_histogram`: file counts by SIZE_BOUNDS.
    - `deletion_vector_rows`: rows marked as deleted; None if unknown.
    - `log`: None if not measured.
    - `spark_only_reasons`: why only Spark may rewrite the table's files; empty if this process can.
    """

    key: str
    version: int
    files: int
    bytes: int
    rows: int | None
    small_files: int
    small_file_share: float
    partitions: int
    partition_by: tuple[str, ...]
    last_checkpoint: int | None
    last_operations: dict[str, LastOperation] = field(default_factory=dict)
    partition_health: tuple[PartitionHealth, ...] = ()
    size_histogram: tuple[int, ...] = (0,) * (len(SIZE_BOUNDS) + 1)
    largest_partition_bytes: int = 0
    median_partition_bytes: float = 0.0
    small_bytes: int = 0
    deletion_vector_rows: int | None = 0
    log: LogSize | None = None
    spark_only_reasons: tuple[str, ...] = ()

    @property
    def skew(self) -> float:
        """The size of the largest partition divided by the median size; 0 for an empty table."""
        if not self.median_partition_bytes:
            return 0.0
        return self.largest_partition_bytes / self.median_partition_bytes

    @property
    def deletion_vector_share(self) -> float | None:
        """The share of rows marked as deleted; None if unknown."""
        if self.rows is None or self.deletion_vector_rows is None:
            return None
        return self.deletion_vector_rows / self.rows if self.rows else 0.0

    @property
    def commits_since_checkpoint(self) -> int:
        """The number of commits that readers replay after the last checkpoint."""
        return self.version - (self.last_checkpoint if self.last_checkpoint is not None else -1)

    @property
    def average_file_bytes(self) -> float:
        """The average file size, 0 for an empty table."""
        return self.bytes / self.files if self.files else 0.0


class _File(NamedTuple):
    size: int
    modified: int
    rows: int | None
    deleted: int | None


def table_health(lake: Lake, key: str, *, partitions: bool = True, history_commits: int = 100) -> TableHealth | None:
    """Measures the table at `key`; None if it does not exist. Reads the log only.

    Args:
        partitions: include partition health, sorted by name.
        history_commits: commits to read for last operations, one small read each.
    """
    table = lake.open(key)
    if table is None:
        return None
    checkpoint = read_last_checkpoint(lake, key)
    adds = pa.table(table.get_add_actions(flatten=False))
    partition_health = _partition_health(adds, deleted_row_counts(lake, key, table, checkpoint=checkpoint))
    files, small = sum(part.files for part in partition_health), sum(part.small_files for part in partition_health)
    of_partitions = [part.bytes for part in partition_health]
    return TableHealth(
        key=key,
        version=table.version(),
        files=files,
        bytes=sum(of_partitions),
        rows=_sum_or_none(part.rows for part in partition_health),
        small_files=small,
        small_file_share=small / files if files else 0.0,
        small_bytes=sum(part.small_bytes for part in partition_health),
        partitions=len(partition_health),
        partition_by=tuple(table.metadata().partition_columns),
        last_checkpoint=int(checkpoint["version"]) if checkpoint is not None else None,
        last_operations=_last_operations(lake, key, table.version(), history_commits),
        partition_health=partition_health if partitions else (),
        size_histogram=histogram(adds.column("size_bytes").to_pylist()),
        largest_partition_bytes=max(of_partitions, default=0),
        median_partition_bytes=statistics.median(of_partitions) if of_partitions else 0.0,
        deletion_vector_rows=_sum_or_none(part.deletion_vector_rows for part in partition_health),
        log=log_size(lake, key),
        spark_only_reasons=tuple(reasons_against_compacting(table)),
    )


def histogram(sizes: Iterable[int]) -> tuple[int, ...]:
    """Counts sizes in the buckets of SIZE_BOUNDS."""
    counts = [0] * (len(SIZE_BOUNDS) + 1)
    for size in sizes:
        counts[bisect_right(SIZE_BOUNDS, size)] += 1
    return tuple(counts)


def _partition_health(adds: pa.Table, deleted: Mapping[str, int] | None) -> tuple[PartitionHealth, ...]:
    """Measures every partition.

    Args:
        deleted: number of rows marked by deletion vectors, by file; None if unknown.
    """
    records = adds.column("num_records").to_pylist() if "num_records" in adds.column_names else [None] * adds.num_rows
    names = ("path", "size_bytes", "modification_time")
    members: dict[Partition, list[_File]] = {}
    columns = (adds.column(name).to_pylist() for name in names)
    for partition, path, size, at, rows in zip(partitions_of(adds), *columns, records, strict=True):
        marked = None if deleted is None else deleted.get(path, 0)
        members.setdefault(partition, []).append(_File(size, at, rows, marked))
    return tuple(_measure_partition(partition, files) for partition, files in sorted(members.items(), key=str))


def _measure_partition(partition: Partition, files: Sequence[_File]) -> PartitionHealth:
    small = [file.size for file in files if file.size < SMALL_FILE_BYTES]
    mergeable = small if len(small) > 1 else []
    return PartitionHealth(
        partition=partition,
        files=len(files),
        bytes=sum(file.size for file in files),
        small_files=len(mergeable),
        small_bytes=sum(mergeable),
        rows=_sum_or_none(file.rows for file in files),
        deletion_vector_rows=_sum_or_none(file.deleted for file in files),
        newest_file_at=dt.datetime.fromtimestamp(max(file.modified for file in files) / 1000, tz=dt.UTC),
    )


def _sum_or_none(counts: Iterable[int | None]) -> int | None:
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def file_sizes_by_partition(lake: Lake, key: str) -> dict[Partition, list[int]]:
    """Returns the file sizes of each partition."""
    table = lake.open(key)
    if table is None:
        return {}
    adds = pa.table(table.get_add_actions(flatten=False))
    sizes_by_partition: dict[Partition, list[int]] = {}
    for partition, size in zip(partitions_of(adds), adds.column("size_bytes").to_pylist(), strict=True):
        sizes_by_partition.setdefault(partition, []).append(size)
    return sizes_by_partition


def file_sizes_by_value(lake: Lake, key: str, column: str) -> dict[str | None, list[int]]:
    """Returns the file sizes of each value of a partition column."""
    sizes_by_value: dict[str | None, list[int]] = {}
    for partition, sizes in file_sizes_by_partition(lake, key).items():
        sizes_by_value.setdefault(dict(partition).get(column), []).extend(sizes)
    return sizes_by_value


def _last_operations(lake: Lake, key: str, version: int, commits: int) -> dict[str, LastOperation]:
    """Returns the newest commit of each operation."""
    operations: dict[str, LastOperation] = {}
    for commit in commit_history(lake, key, newest=version, limit=commits):
        run = commit.metadata.get("run")
        operations.setdefault(commit.operation, LastOperation(commit.operation, commit.version, commit.at, run))
    return operations
