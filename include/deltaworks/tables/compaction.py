"""Compacts small partitions in this process, without a JVM.

The rows of a partition's small files are cast to the table's current columns and written as one file with statistics.
Unsupported partitions are reported with a reason and left to Spark: those that need more than MAX_MEMORY_BYTES, have a
column type that cannot be cast, an unreadable file, or another row count than the log.

One commit contains many partitions, like Delta's OPTIMIZE: with `dataChange: false`, so streams and change feeds see no
changed rows. Concurrent appends do not conflict: the commit is retried on top of them. A partition whose input files
were removed by a concurrent commit (a merge or restore) is skipped; the others are still committed.

`optimize.compact` of delta-rs cannot replace it: it has no check of the write turn before its commit, no bound on the
bytes of a call and no choice of partitions by several columns. For 240 small files on S3 it made 770 requests in 4.8 s,
this module 521 in 2.3 s. Tables that only their own job writes are compacted by it.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate

import pyarrow as pa
from deltalake import DeltaTable

from deltaworks.control.objects import ObjectStore
from deltaworks.errors import ConcurrencyError, ContractError
from deltaworks.tables.arrow_types import rows_as_declared
from deltaworks.tables.changes import Partition, partitions_of
from deltaworks.tables.features import reasons_against_compacting
from deltaworks.tables.files import WrittenFile
from deltaworks.tables.files_commit import FilesCommit
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import Action, TableState, file_id, stats_of
from deltaworks.tables.rewrite import DataFiles, Rewrite, SparkRequiredError, commit_rewrite, has_changed_metadata

#: Maximum total size of a partition's small files.
MAX_BYTES_PER_PARTITION = 32 << 20
#: Maximum memory for the rows of one partition.
MAX_MEMORY_BYTES = 256 << 20
#: Reading many small objects is bound by latency.
_READ_THREADS = 8
_BATCH_ROWS = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOutcome:
    """Result of a compaction: compacted partitions, partitions skipped after a conflict, and unsupported ones with the
    reason.
    """

    version: int | None = None
    compacted: tuple[Partition, ...] = ()
    conflicting: tuple[Partition, ...] = ()
    unsupported: Mapping[Partition, str] = field(default_factory=dict)


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
    """Merges the files smaller than `below_bytes` of each partition into one file, in a single commit. Changes no rows.

    Idempotent: partitions with fewer than `min_files` such files are skipped. Safe with concurrent writers: appends do
    not conflict, and a partition whose files were replaced meanwhile is skipped.

    Args:
        partitions: None for all.
        max_bytes: per partition, compacts only the oldest small files up to this total size, at least two. None for
            all.
        before_commit: called before each commit attempt; raising ends the compaction without a commit.
    """
    table = lake.open(key)
    if table is None:
        return CompactionOutcome()
    if reasons := reasons_against_compacting(table):
        return CompactionOutcome(unsupported=dict.fromkeys(partitions or (), ", ".join(reasons)))
    small_files = {
        partition: files if max_bytes is None else _oldest_up_to(files, max_bytes)
        for partition, files in _small_files(table, partitions, below_bytes).items()
        if len(files) >= min_files
    }
    if not small_files:
        return CompactionOutcome()
    state = _state_of(key, table, [added for files in small_files.values() for added in files])
    compaction = _Compaction(state, small_files)
    commit = FilesCommit(
        step=None,
        user_metadata=user_metadata,
        operation="OPTIMIZE",
        # `commit` is unique, so that another writer's commit is never mistaken for this one.
        parameters={"predicate": "[]", "zOrderBy": "[]", "auto": "false", "commit": uuid.uuid4().hex},
        changes_rows=False,
        action="compact small files",
    )
    try:
        committed = commit_rewrite(
            lake, objects, key, compaction.rewrite, commit=commit, expected=state, before_commit=before_commit
        )
    except ConcurrencyError as error:
        if error.condition != "COMMIT_CONTENDED":
            raise
        committed = None
    compacted = () if committed is None else tuple(compaction.remaining)
    return CompactionOutcome(
        version=None if committed is None else committed.version,
        compacted=compacted,
        conflicting=tuple(partition for partition in compaction.merged or () if partition not in compacted),
        unsupported=compaction.unsupported,
    )


class _Compaction:
    """Merges the small files of a table's partitions.

    - `merged`: the new files by partition; None before the first attempt.
    - `remaining`: partitions of which no concurrent commit removed a small file.
    - `unsupported`: partitions that need Spark, with the reason.
    """

    def __init__(self, expected: TableState, small_files: Mapping[Partition, Sequence[Action]]) -> None:
        self._expected = expected
        self._small_files = small_files
        self.merged: dict[Partition, list[WrittenFile]] | None = None
        self.remaining: list[Partition] = []
        self.unsupported: dict[Partition, str] = {}

    def rewrite(self, current: TableState, files: DataFiles) -> Rewrite | None:
        """Returns the files to exchange in the current state. Files are merged once, by the first attempt."""
        if self.merged is None:
            self.merged = {}
            for partition, small_files in self._small_files.items():
                try:
                    self.merged[partition] = _merge(files, partition, small_files)
                except SparkRequiredError as reason:
                    self.unsupported[partition] = str(reason)
        self.remaining = [
            partition
            for partition in ([] if has_changed_metadata(current, self._expected) else self.merged)
            if all(file_id(added) in current.files for added in self._small_files[partition])
        ]
        if not self.remaining:
            return None
        removed = [added for partition in self.remaining for added in self._small_files[partition]]
        added = [file for partition in self.remaining for file in self.merged[partition]]
        return Rewrite(removed=removed, added=added, metrics=_metrics(removed, added))


def _small_files(
    table: DeltaTable, partitions: Sequence[Partition] | None, below_bytes: int
) -> dict[Partition, list[Action]]:
    """Returns the small files by partition, oldest first; only partitions with at least two of them."""
    snapshot = pa.table(table.get_add_actions(flatten=False))
    columns = [snapshot.column(name).to_pylist() for name in ("path", "size_bytes", "modification_time")]
    known_rows = "num_records" in snapshot.column_names
    rows = snapshot.column("num_records").to_pylist() if known_rows else [None] * snapshot.num_rows
    selected = None if partitions is None else set(partitions)
    by_partition: dict[Partition, list[tuple[int, str, Action]]] = {}
    for partition, path, size, at, count in zip(partitions_of(snapshot), *columns, rows, strict=True):
        if size < below_bytes and (selected is None or partition in selected):
            added = {"path": path, "size": size, "partitionValues": dict(partition)}
            if count is not None:
                added["stats"] = json.dumps({"numRecords": count})
            by_partition.setdefault(partition, []).append((at, path, added))
    return {
        partition: [added for *_, added in sorted(files, key=lambda file: file[:2])]
        for partition, files in sorted(by_partition.items(), key=str)
        if len(files) > 1
    }


def _state_of(key: str, table: DeltaTable, files: Sequence[Action]) -> TableState:
    """Returns the state of an open table with only these files.

    The complete state takes five times as long as the open table: 1.2 s and 200 MB for 50,000 files.
    """
    metadata = table.metadata()
    return TableState(
        key,
        table.version(),
        metadata={
            "schemaString": table.schema().to_json(),
            "partitionColumns": metadata.partition_columns,
            "configuration": metadata.configuration,
        },
        files={file_id(added): added for added in files},
    )


def _oldest_up_to(files: list[Action], max_bytes: int) -> list[Action]:
    """Returns the first files that have at most `max_bytes` in total, but at least two files."""
    cumulative_bytes = accumulate(added["size"] for added in files)
    return files[: max(2, sum(end <= max_bytes for end in cumulative_bytes))]


def _merge(files: DataFiles, partition: Partition, small_files: Sequence[Action]) -> list[WrittenFile]:
    """Writes the rows of these files as one new file."""
    if sum(added["size"] for added in small_files) > MAX_BYTES_PER_PARTITION:
        raise SparkRequiredError(f"its small files exceed {MAX_BYTES_PER_PARTITION:,} bytes")
    budget = _MemoryBudget(MAX_MEMORY_BYTES)
    with ThreadPoolExecutor(_READ_THREADS) as pool:
        rows = pool.map(lambda added: _read_small_file(files, added, budget), small_files)
        batches = [batch for file in rows for batch in file]
    return files.write(dict(partition), batches, max_bytes=2 * MAX_MEMORY_BYTES)


def _read_small_file(files: DataFiles, added: Action, budget: _MemoryBudget) -> list[pa.RecordBatch]:
    batches = []
    try:
        for batch in files.read(added, batch_rows=_BATCH_ROWS):
            budget.reserve(batch.nbytes)
            batches.append(_conform_batch(batch, files))
    except (ContractError, OSError, pa.ArrowInvalid) as error:
        # The other partitions are still merged. Spark's error names a damaged file.
        raise SparkRequiredError(f"{added['path']} cannot be read: {error.__cause__ or error}"[:300]) from error
    rows, logged_rows = sum(batch.num_rows for batch in batches), stats_of(added).get("numRecords")
    if logged_rows is not None and logged_rows != rows:
        raise SparkRequiredError(f"{added['path']} has {rows:,} rows, but the log has {logged_rows:,}")
    return batches


class _MemoryBudget:
    """Limit of memory that the reading threads share."""

    def __init__(self, max_bytes: int) -> None:
        self._free_bytes = max_bytes
        self._lock = threading.Lock()

    def reserve(self, size: int) -> None:
        """Reserves `size` bytes. Raises if the limit would be exceeded."""
        with self._lock:
            self._free_bytes -= size
            if self._free_bytes < 0:
                raise SparkRequiredError(f"its rows need more than {MAX_MEMORY_BYTES:,} bytes of memory")


def _conform_batch(batch: pa.RecordBatch, files: DataFiles) -> pa.RecordBatch:
    """Casts a batch to the table's current columns. Partition columns that Spark wrote into the file are ignored,
    because the log has their values.
    """
    unknown = set(batch.schema.names) - set(files.columns.names) - set(files.partition_by)
    if unknown:
        raise SparkRequiredError(f"a file has columns that the table does not have: {', '.join(sorted(unknown))}")
    try:
        return rows_as_declared(batch, files.columns)
    except pa.ArrowInvalid as error:
        raise SparkRequiredError(str(error)[:300]) from error


def _metrics(removed: Sequence[Action], added: Sequence[WrittenFile]) -> dict[str, int]:
    """Returns the operation metrics with Delta's names."""
    return {
        "numRemovedFiles": len(removed),
        "numRemovedBytes": sum(file["size"] for file in removed),
        "numAddedFiles": len(added),
        "numAddedBytes": sum(file.size for file in added),
    }
