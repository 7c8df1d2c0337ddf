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

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate

import pyarrow as pa
from deltalake import DeltaTable

from deltaworks.control.objects import ObjectStore
from deltaworks.tables.arrow_types import rows_as_declared
from deltaworks.tables.changes import Partition, partitions_of
from deltaworks.tables.commit import commit_attempts
from deltaworks.tables.features import reasons_against_compacting
from deltaworks.tables.files import WrittenFile
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import Action, read_commits
from deltaworks.tables.log_writer import commit_info, remove_action, write_commit, write_due_checkpoint
from deltaworks.tables.rewrite import DataFiles, SparkRequiredError

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
    reasons = reasons_against_compacting(table)
    if reasons:
        return CompactionOutcome(unsupported=dict.fromkeys(partitions or (), ", ".join(reasons)))
    files = {
        partition: small_files if max_bytes is None else _oldest_up_to(small_files, max_bytes)
        for partition, small_files in _small_files(table, partitions, below_bytes).items()
        if len(small_files) >= min_files
    }
    data_files = DataFiles(
        lake,
        key,
        schema=pa.schema(table.schema().to_arrow()),
        partition_by=table.metadata().partition_columns,
        configuration=table.metadata().configuration,
    )
    rewrites: list[_RewrittenFiles] = []
    unsupported: dict[Partition, str] = {}
    for partition, small_files in files.items():
        try:
            rewrites.append(_rewrite(data_files, partition, small_files))
        except SparkRequiredError as reason:
            unsupported[partition] = str(reason)
    if not rewrites:
        return CompactionOutcome(unsupported=unsupported)
    version, committed = _commit(
        lake, objects, key, table, rewrites, user_metadata=user_metadata, before_commit=before_commit
    )
    compacted = tuple(rewrite.partition for rewrite in committed)
    conflicting = [rewrite for rewrite in rewrites if rewrite.partition not in compacted]
    data_files.discard(file for rewrite in conflicting for file in rewrite.added_files)
    return CompactionOutcome(
        version=version,
        compacted=compacted,
        conflicting=tuple(rewrite.partition for rewrite in conflicting),
        unsupported=unsupported,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _RewrittenFiles:
    """Rewrite of one partition: sizes of the removed files by path as in the log, and the added files with the same
    rows.
    """

    partition: Partition
    removed_files: Mapping[str, int]
    added_files: tuple[WrittenFile, ...]


@dataclass(frozen=True, slots=True)
class _SmallFile:
    """A small file: path as in the log, size in bytes, and row count if known."""

    path: str
    size: int
    rows: int | None


def _small_files(
    table: DeltaTable, partitions: Sequence[Partition] | None, below_bytes: int
) -> dict[Partition, list[_SmallFile]]:
    """Returns the small files by partition, oldest first; only partitions with at least two of them."""
    add_actions = pa.table(table.get_add_actions(flatten=False))
    rows = (
        add_actions.column("num_records").to_pylist()
        if "num_records" in add_actions.column_names
        else [None] * add_actions.num_rows
    )
    columns = (add_actions.column(name).to_pylist() for name in ("path", "size_bytes", "modification_time"))
    selected = None if partitions is None else set(partitions)
    files_by_partition: dict[Partition, list[tuple[int, _SmallFile]]] = {}
    for partition, path, size, at, count in zip(partitions_of(add_actions), *columns, rows, strict=True):
        if size < below_bytes and (selected is None or partition in selected):
            files_by_partition.setdefault(partition, []).append((at, _SmallFile(path, size, count)))
    return {
        partition: [member for _, member in sorted(files, key=lambda file: (file[0], file[1].path))]
        for partition, files in sorted(files_by_partition.items(), key=str)
        if len(files) > 1
    }


def _oldest_up_to(files: list[_SmallFile], max_bytes: int) -> list[_SmallFile]:
    """Returns the first files that have at most `max_bytes` in total, but at least two files."""
    cumulative_bytes = accumulate(member.size for member in files)
    return files[: max(2, sum(end <= max_bytes for end in cumulative_bytes))]


def _rewrite(files: DataFiles, partition: Partition, small_files: Sequence[_SmallFile]) -> _RewrittenFiles:
    """Writes the rows of these files as one new file."""
    if sum(member.size for member in small_files) > MAX_BYTES_PER_PARTITION:
        raise SparkRequiredError(f"its small files exceed {MAX_BYTES_PER_PARTITION:,} bytes")
    budget = _MemoryBudget(MAX_MEMORY_BYTES)
    with ThreadPoolExecutor(_READ_THREADS) as pool:
        batches = [
            batch
            for rows in pool.map(lambda member: _read_small_file(files, member, budget), small_files)
            for batch in rows
        ]
    written = files.write(dict(partition), batches, max_bytes=2 * MAX_MEMORY_BYTES)
    return _RewrittenFiles(
        partition=partition,
        removed_files={member.path: member.size for member in small_files},
        added_files=tuple(written),
    )


def _read_small_file(files: DataFiles, small_file: _SmallFile, budget: _MemoryBudget) -> list[pa.RecordBatch]:
    batches = []
    try:
        for batch in files.read({"path": small_file.path, "size": small_file.size}, batch_rows=_BATCH_ROWS):
            budget.reserve(batch.nbytes)
            batches.append(_conform_batch(batch, files))
    except (OSError, pa.ArrowInvalid) as error:
        raise SparkRequiredError(f"{small_file.path} cannot be read: {error}"[:300]) from error
    rows = sum(batch.num_rows for batch in batches)
    if small_file.rows is not None and small_file.rows != rows:
        raise SparkRequiredError(f"{small_file.path} has {rows:,} rows, but the log has {small_file.rows:,}")
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


def _commit(
    lake: Lake,
    objects: ObjectStore,
    key: str,
    table: DeltaTable,
    rewrites: Sequence[_RewrittenFiles],
    *,
    user_metadata: str,
    before_commit: Callable[[], None],
) -> tuple[int | None, Sequence[_RewrittenFiles]]:
    """Replaces the files of `table` by the rewritten ones in one commit.

    Returns the version and the partitions that were committed; None and no partitions after too many conflicts.
    """
    version, remaining = table.version(), list(rewrites)
    for _ in commit_attempts():
        for actions in _newer_commits(lake, key, version):
            version += 1
            remaining = (
                []
                if _changes_metadata(actions)
                else [rewrite for rewrite in remaining if not _removes_inputs(actions, rewrite)]
            )
        if not remaining:
            break
        before_commit()
        if write_commit(objects, key, version + 1, _actions(remaining, version, user_metadata)):
            write_due_checkpoint(lake, key, version + 1, configuration=table.metadata().configuration)
            return version + 1, remaining
    return None, []


def _newer_commits(lake: Lake, key: str, version: int) -> list[list[Action]]:
    """Returns the commits after `version`, oldest first."""
    commits: list[list[Action]] = []
    while True:
        ((_, actions),) = read_commits(lake, key, [version + len(commits) + 1])
        if actions is None:
            return commits
        commits.append(actions)


def _changes_metadata(actions: Sequence[Action]) -> bool:
    """Returns whether a commit may have changed columns, properties or required writer features."""
    return any("metaData" in action or "protocol" in action for action in actions)


def _removes_inputs(actions: Sequence[Action], rewrite: _RewrittenFiles) -> bool:
    # A DELETE with deletion vectors removes a file and adds it again with the same path.
    return any("remove" in action and action["remove"]["path"] in rewrite.removed_files for action in actions)


def _actions(rewrites: Sequence[_RewrittenFiles], version: int, user_metadata: str) -> list[Action]:
    now = int(time.time() * 1000)
    written = [file for rewrite in rewrites for file in rewrite.added_files]
    info = commit_info(
        "OPTIMIZE",
        user_metadata=user_metadata,
        at_ms=now,
        read_version=version,
        # `commit` is unique per attempt, so that another writer's commit is never mistaken for this one.
        parameters={"predicate": "[]", "zOrderBy": "[]", "auto": "false", "commit": uuid.uuid4().hex},
        metrics={
            "numRemovedFiles": sum(len(rewrite.removed_files) for rewrite in rewrites),
            "numRemovedBytes": sum(sum(rewrite.removed_files.values()) for rewrite in rewrites),
            "numAddedFiles": len(written),
            "numAddedBytes": sum(file.size for file in written),
        },
        changes_rows=False,
    )
    removes = [
        remove_action({"path": path, "partitionValues": dict(rewrite.partition), "size": size}, now, data_change=False)
        for rewrite in rewrites
        for path, size in rewrite.removed_files.items()
    ]
    return [info, *removes, *({"add": file.to_add_fields(at_ms=now, data_change=False)} for file in written)]
