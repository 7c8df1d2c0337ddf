"""Replaces the rows of given `seq`s in one Delta commit of one table, without a JVM.

Files with such rows are rewritten without them, the new rows are written to files of their partitions, and one commit
exchanges old for new files (`tables.files_commit`). The commit is a put-if-absent of the version after the one it was
built from. After a concurrent commit the replacement is built again from the new version.

Tables with unsupported features, and tables with more data than a small job should hold in memory, require Spark.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from deltaworks.control.objects import ObjectStore
from deltaworks.errors import ContractError
from deltaworks.privacy.erasure.table_files import TableFiles
from deltaworks.recovery.reprocess.replace_rows import DATE_COLUMNS, ReplaceResult
from deltaworks.recovery.reprocess.selection import SeqRanges
from deltaworks.tables.commit import Step
from deltaworks.tables.features import reasons_against_rewriting
from deltaworks.tables.files import split_by_partition
from deltaworks.tables.files_commit import (
    FilesCommit,
    FilesCommitOutcome,
    TargetState,
    commit_files,
    reasons_against_files_commit,
)
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import Action, FileId, TableState, parse_schema_string, stats_of
from deltaworks.tables.log_writer import write_due_checkpoint

log = logging.getLogger(__name__)
#: Upper bound in bytes for the staged files and for the rewritten files of one table; more requires Spark.
MAX_DIRECT_BYTES = 16 << 20
Partition = tuple[tuple[str, str | None], ...]


class _SparkRequired(Exception):
    """The table requires Spark; the text is the reason."""


class _NoChanges(Exception):
    """Nothing to remove and nothing to add."""


@dataclass(slots=True)
class _RewriteAttempt:
    """The files removed and added by one attempt, and their rows."""

    removed_files: set[FileId] = field(default_factory=set)
    added_files: list[Action] = field(default_factory=list)
    rows_out: int = 0
    rows_in: int = 0
    dates: set[str] = field(default_factory=set)


class DirectReplacer:
    """Replaces rows of one table in this process. Idempotent by its step; safe with concurrent writers.

    Args:
        max_bytes: bound on the staged files and on the rewritten files.
    """

    def __init__(self, lake: Lake, objects: ObjectStore, key: str, *, max_bytes: int = MAX_DIRECT_BYTES) -> None:
        self._lake = lake
        self._objects = objects
        self._key = key
        self._max_bytes = max_bytes
        self._attempt = _RewriteAttempt()

    def replace(
        self,
        ranges: SeqRanges,
        staged: Sequence[str],
        *,
        step: Step,
        user_metadata: str,
        before_commit: Callable[[], None] = lambda: None,
    ) -> ReplaceResult | None:
        """Removes the rows of `ranges` and adds the staged rows, exactly once. Returns None if Spark is required.

        Args:
            staged: keys of Parquet files in the lake; the `_seq` of every row is in `ranges`.
            before_commit: called before each attempt; an exception ends the replacement.

        Raises:
            ConcurrencyError: COMMIT_CONTENDED, every attempt met a concurrent commit.
        """
        try:
            return self._replace_in_process(ranges, staged, step, user_metadata, before_commit)
        except _SparkRequired as reason:
            self._delete_uncommitted()
            log.warning("table=%s is left to Spark: %s", self._key, reason)
            return None

    def _replace_in_process(
        self,
        ranges: SeqRanges,
        staged: Sequence[str],
        step: Step,
        user_metadata: str,
        before_commit: Callable[[], None],
    ) -> ReplaceResult | None:
        opened = self._lake.open(self._key)
        if opened is None:
            return None
        if reasons := reasons_against_rewriting(opened):
            raise _SparkRequired(", ".join(reasons))
        new = self._staged_rows(staged, opened)

        def target(current: TableState) -> TargetState:
            self._delete_uncommitted()
            self._attempt = _RewriteAttempt()
            self._rewrite(current, ranges, new)
            remaining_files = {
                name: added for name, added in current.files.items() if name not in self._attempt.removed_files
            }
            return TargetState(
                {**remaining_files, **{(added["path"], ""): added for added in self._attempt.added_files}}
            )

        commit = FilesCommit(
            step=step,
            user_metadata=user_metadata,
            operation="WRITE",
            parameters={"mode": "Overwrite", "partitionBy": "[]", "predicate": ranges.sql()},
        )
        try:
            done = commit_files(
                self._lake, self._objects, self._key, target, commit=commit, before_commit=before_commit
            )
        except _NoChanges:
            return ReplaceResult(outcome="unchanged", rows_out=0, rows_in=0, dates=(), version=int(opened.version()))
        except _SparkRequired:
            raise
        except BaseException:
            self._delete_uncommitted()
            raise
        return self._outcome(done, new, opened)

    def _outcome(self, done: FilesCommitOutcome, new: pa.Table, opened: DeltaTable) -> ReplaceResult:
        if not done.newly_committed:
            self._delete_uncommitted()
            return ReplaceResult(
                outcome="already_committed", rows_out=0, rows_in=new.num_rows, dates=(), version=done.version
            )
        write_due_checkpoint(self._lake, self._key, done.version, configuration=opened.metadata().configuration)
        attempt = self._attempt
        return ReplaceResult(
            outcome="committed",
            rows_out=attempt.rows_out,
            rows_in=attempt.rows_in,
            dates=tuple(sorted(attempt.dates)),
            version=done.version,
        )

    def _staged_rows(self, staged: Sequence[str], opened: DeltaTable) -> pa.Table:
        """Reads the staged rows; an empty table if nothing is staged."""
        columns = pa.schema(opened.schema().to_arrow())
        filesystem, paths = self._lake.filesystem, [arrow_path(self._lake.storage, key) for key in staged]
        size = sum(info.size or 0 for info in filesystem.get_file_info(paths)) if paths else 0
        if size > self._max_bytes:
            raise _SparkRequired(f"{size:,} bytes are staged")
        parts = []
        for path in paths:
            with filesystem.open_input_file(path) as source:
                parts.append(pq.read_table(source))
        rows = pa.concat_tables(parts, promote_options="default") if parts else columns.empty_table()
        unknown = sorted(set(rows.column_names) - set(columns.names))
        if unknown:
            raise _SparkRequired(f"the table lacks {', '.join(unknown)}")
        return rows

    def _rewrite(self, current: TableState, ranges: SeqRanges, new: pa.Table) -> None:
        """Writes the replacements of the affected files of one version. If the attempt is not committed, they are
        deleted.
        """
        if reasons := reasons_against_files_commit(current):
            raise _SparkRequired(", ".join(reasons))
        files, attempt = TableFiles(self._lake, current), self._attempt
        remaining = self._remaining_rows(current, files, ranges)
        partition_by = list(current.metadata.get("partitionColumns") or ())
        _check_partitions(current, partition_by)
        batches_by_partition: dict[Partition, list[pa.RecordBatch]] = defaultdict(list, remaining)
        for values, part in split_by_partition(new, partition_by) if new.num_rows else ():
            batches_by_partition[tuple(values.items())] += part.to_batches()
            attempt.dates |= _row_dates(part, values)
        attempt.rows_in = new.num_rows
        if not attempt.rows_out and not attempt.rows_in:
            raise _NoChanges
        for place, batches in batches_by_partition.items():
            attempt.added_files += self._or_spark(lambda: files.write({"partitionValues": dict(place)}, batches))  # noqa: B023

    def _remaining_rows(
        self, current: TableState, files: TableFiles, ranges: SeqRanges
    ) -> dict[Partition, list[pa.RecordBatch]]:
        """Returns the rows to keep from rewritten files by partition; records the removed files."""
        attempt, size = self._attempt, 0
        remaining: dict[Partition, list[pa.RecordBatch]] = {}
        for name, added in current.files.items():
            if not _may_contain(added, ranges):
                continue
            size += int(added.get("size") or 0)
            if size > self._max_bytes:
                raise _SparkRequired(f"files of more than {self._max_bytes:,} bytes hold its rows")
            values = dict(added.get("partitionValues") or {})
            staying, rows_out = [], 0
            for batch in self._or_spark(lambda: list(files.read(added))):  # noqa: B023
                removed_mask = _mask_in_ranges(batch, ranges)
                removed_count = int(removed_mask.sum())
                rows_out += removed_count
                if removed_count:
                    attempt.dates |= _row_dates(batch.filter(pa.array(removed_mask)), values)
                staying.append(batch.filter(pa.array(~removed_mask)))
            if rows_out:
                attempt.removed_files.add(name)
                attempt.rows_out += rows_out
                remaining.setdefault(tuple(values.items()), []).extend(staying)
        return remaining

    @staticmethod
    def _or_spark(work: Callable[[], list[Any]]) -> list[Any]:
        """Runs a read or write; translates errors of files that only Spark may be able to read to `_SparkRequired`."""
        try:
            return work()
        except (ContractError, pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, KeyError) as error:
            raise _SparkRequired(str(error)[:300]) from error

    def _delete_uncommitted(self) -> None:
        """Deletes the files of an uncommitted attempt. If a deletion fails, orphan removal deletes the file later."""
        root = arrow_path(self._lake.storage, self._key)
        for added in self._attempt.added_files:
            try:
                self._lake.filesystem.delete_file(f"{root}/{added['path']}")
            except OSError as error:
                log.warning("table=%s file=%s stays behind: %s", self._key, added["path"], error)
        self._attempt = _RewriteAttempt()


def _check_partitions(current: TableState, partition_by: Sequence[str]) -> None:
    """Raises `_SparkRequired` for partition columns whose values Delta writers may format differently."""
    columns = parse_schema_string(current.metadata["schemaString"])
    for name in partition_by:
        kind = columns.field(name).type
        if not (pa.types.is_string(kind) or pa.types.is_date32(kind) or pa.types.is_integer(kind)):
            raise _SparkRequired(f"the partition column {name} of type {kind}")


def _may_contain(added: Action, ranges: SeqRanges) -> bool:
    """Returns whether a file may have rows in the ranges, by its statistics; True without statistics."""
    stats = stats_of(added)
    least = (stats.get("minValues") or {}).get("_seq")
    most = (stats.get("maxValues") or {}).get("_seq")
    if least is None or most is None:
        return True
    return next(iter(ranges.clip(int(least), int(most))), None) is not None


def _mask_in_ranges(batch: pa.RecordBatch, ranges: SeqRanges) -> Any:
    """Returns a boolean mask of the rows within the ranges."""
    index = batch.schema.get_field_index("_seq")
    if index < 0:
        raise _SparkRequired("a file lacks the column _seq")
    column = batch.column(index)
    if column.null_count:
        raise _SparkRequired("a row lacks its _seq")
    seqs = column.to_numpy(zero_copy_only=False)
    firsts = np.array([first for first, _ in ranges], dtype=np.int64)
    lasts = np.array([last for _, last in ranges], dtype=np.int64)
    at = np.searchsorted(firsts, seqs, side="right") - 1
    return (at >= 0) & (seqs <= lasts[at])


def _row_dates(rows: pa.RecordBatch | pa.Table, values: dict[str, str | None]) -> set[str]:
    """Returns the dates of the rows, from the partition values or the date column."""
    for name in DATE_COLUMNS:
        if name in values:
            return {values[name]} - {None}  # type: ignore[return-value]
        if name in rows.schema.names:
            return {date.isoformat() for date in _distinct_values(rows, name)}
    return set()


def _distinct_values(rows: pa.RecordBatch | pa.Table, name: str) -> Iterator[Any]:
    yield from (value for value in rows.column(name).unique().to_pylist() if value is not None)
