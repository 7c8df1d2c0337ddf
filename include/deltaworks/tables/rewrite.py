"""Rewrites data files of one table in one commit, without a JVM.

For a few thousand rows, a Spark job takes seconds, mostly to read the log and find files. Here the log is read once,
the files to rewrite are read in batches that fit into memory, and one commit exchanges old for new files. The commit
has exactly the version after the one that was read, so it never overwrites another writer's commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from deltaworks.control.foreign_errors import data_file_error
from deltaworks.control.objects import ObjectStore
from deltaworks.tables.arrow_types import rows_as_declared
from deltaworks.tables.changes import Partition
from deltaworks.tables.commit import Step
from deltaworks.tables.deletion_vectors import deleted_positions
from deltaworks.tables.files import (
    MAX_BATCH_ROWS,
    WrittenFile,
    open_data_file,
    parquet_batches,
    split_by_partition,
    write_file_body,
)
from deltaworks.tables.files_commit import FilesCommit, FilesCommitOutcome, TargetState, commit_files
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import Action, TableState, file_id, is_absolute_path, parse_schema_string
from deltaworks.tables.log_writer import write_due_checkpoint
from deltaworks.tables.statistics import IndexedColumns

log = logging.getLogger(__name__)
#: Maximum size of a written file in memory. OPTIMIZE merges the files later.
MAX_FILE_BYTES: Final = 128 << 20


class SparkRequiredError(Exception):
    """This process cannot rewrite the table or file; the message is the reason."""


class DataFiles:
    """Reads and writes data files of a table as of one version. Only reading is thread-safe.

    Args:
        written: receives every written file.
    """

    def __init__(self, lake: Lake, state: TableState, *, written: list[WrittenFile] | None = None) -> None:
        self._lake = lake
        self._key = state.key
        self._root = arrow_path(lake.storage, state.key)
        self._indexed = IndexedColumns.of(state.configuration)
        self._written = [] if written is None else written
        declared = parse_schema_string(state.metadata["schemaString"])
        self.partition_by = tuple(state.metadata.get("partitionColumns") or ())
        self.columns = pa.schema([column for column in declared if column.name not in self.partition_by])

    def read(self, added: Action, *, batch_rows: int = MAX_BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yields the rows of an added file, without those deleted by a deletion vector; see `read_with_deleted`."""
        for batch, alive in self.read_with_deleted(added, batch_rows=batch_rows):
            yield batch if alive is None else batch.filter(pa.array(alive))

    def read_with_deleted(
        self, added: Action, *, dictionary_encoded: bool = False, batch_rows: int = MAX_BATCH_ROWS
    ) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.bool_] | None]]:
        """Yields the rows of an added file in batches, with the columns it contains.

        Includes rows deleted by a deletion vector: each batch has a mask of the others; None if none is deleted.

        Args:
            dictionary_encoded: return texts as dictionary codes, each distinct text once.

        Raises:
            SparkRequiredError: the file belongs to another table.
            ContractError: DELETION_VECTOR_UNREADABLE, DATA_FILE_MISSING, DATA_FILE_UNREADABLE.
            OSError, ArrowInvalid: the file cannot be read for another reason.
        """
        if is_absolute_path(added["path"]):
            raise SparkRequiredError("it references a file of another table")
        deleted = deleted_positions(self._lake, self._key, added)
        path, position = f"{self._root}/{unquote(added['path'])}", 0
        try:
            with open_data_file(self._lake.filesystem, path, int(added.get("size") or 0)) as source:
                for batch in parquet_batches(source, dictionary_encoded=dictionary_encoded, batch_rows=batch_rows):
                    end = position + batch.num_rows
                    yield batch, _alive_mask(deleted, position, end) if len(deleted) else None
                    position = end
        except (OSError, pa.ArrowException) as error:
            raise data_file_error(error, key=f"{self._key}/{unquote(added['path'])}") or error from error

    def read_declared(self, added: Action) -> pa.Table:
        """Returns the rows of an added file with the table's columns."""
        batches = [rows_as_declared(batch, self.columns) for batch in self.read(added)]
        return pa.Table.from_batches(batches, schema=self.columns)

    def write(
        self, partition: Mapping[str, str | None], batches: Iterable[pa.RecordBatch], *, max_bytes: int = MAX_FILE_BYTES
    ) -> list[WrittenFile]:
        """Writes rows to new files of a partition, with the table's columns; writes no file without rows.

        Args:
            max_bytes: begin another file after as many bytes in memory.
        """
        declared = (rows_as_declared(batch, self.columns) for batch in batches if batch.num_rows)
        files = []
        for rows in _group_by_size(declared, max_bytes):
            files.append(
                write_file_body(self._lake.filesystem, self._root, rows, partition=partition, indexed=self._indexed)
            )
            self._written.append(files[-1])
        return files

    def write_rows(self, rows: pa.Table) -> list[WrittenFile]:
        """Writes rows with the partition columns to new files, at least one per partition."""
        parts = split_by_partition(rows, self.partition_by) if rows.num_rows else []
        return [file for partition, part in parts for file in self.write(partition, part.to_batches())]

    def discard(self, files: Iterable[WrittenFile]) -> None:
        """Deletes written files that were not committed. Orphan removal deletes those that remain after an error."""
        for file in files:
            try:
                self._lake.filesystem.delete_file(f"{self._root}/{file.path}")
            except OSError as error:
                log.warning("table=%s file=%s remains: %s", self._key, file.path, error)


def _alive_mask(deleted: npt.NDArray[np.int64], first: int, end: int) -> npt.NDArray[np.bool_]:
    alive = np.ones(end - first, dtype=np.bool_)
    alive[deleted[(deleted >= first) & (deleted < end)] - first] = False
    return alive


def _group_by_size(batches: Iterable[pa.RecordBatch], max_bytes: int) -> Iterator[pa.Table]:
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        pending.append(batch)
        size += batch.nbytes
        if size >= max_bytes:
            yield pa.Table.from_batches(pending)
            pending, size = [], 0
    if pending:
        yield pa.Table.from_batches(pending)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """Files that a commit removes, as in the table's state, and files that it adds; see `TargetState`."""

    removed: Sequence[Action]
    added: Sequence[WrittenFile]
    metrics: Mapping[str, int] | None = None
    user_metadata: str | None = None

    def target(self, state: TableState) -> TargetState:
        """Returns the files that the table is to have instead of those in `state`."""
        removed = set(map(file_id, self.removed))
        files = {name: added for name, added in state.files.items() if name not in removed}
        now = int(time.time() * 1000)
        new = [file.to_add_fields(at_ms=now, data_change=True) for file in self.added]
        files |= {file_id(fields): fields for fields in new}
        return TargetState(files, metrics=self.metrics, user_metadata=self.user_metadata)


def commit_rewrite(
    lake: Lake,
    objects: ObjectStore,
    key: str,
    rewrite: Callable[[TableState, DataFiles], Rewrite | None],
    *,
    commit: FilesCommit,
    expected: TableState | None = None,
    before_commit: Callable[[], None] = lambda: None,
) -> FilesCommitOutcome | None:
    """Commits a rewrite as one step. Idempotent per step; safe with concurrent writers.

    Deletes written files that no attempt added. The last attempt's remain: it may be committed although its reply was
    lost. Orphan removal deletes them if it is not.

    Args:
        rewrite: writes the new files for the given state; called again after a conflict. None commits nothing.
        expected: the current state for the first attempt, if it has been read.
        before_commit: called before each attempt; raising ends the rewrite without a commit.

    Raises:
        ConcurrencyError, ContractError: see `commit_files`.
    """
    written: list[WrittenFile] = []
    proposed: Sequence[WrittenFile] = ()
    files: DataFiles | None = None
    configuration: dict[str, str] = {}

    def target(current: TableState) -> TargetState:
        nonlocal proposed, files, configuration
        proposed, configuration = (), current.configuration
        files = DataFiles(lake, current, written=written)
        changes = rewrite(current, files)
        if changes is None:
            raise _NoChangesError
        before_commit()
        proposed = changes.added
        return changes.target(current)

    try:
        outcome = commit_files(lake, objects, key, target, commit=commit, expected=expected)
    except _NoChangesError:
        return None
    finally:
        if files is not None:
            proposed_paths = {file.path for file in proposed}
            files.discard(file for file in written if file.path not in proposed_paths)
    if outcome.newly_committed:
        write_due_checkpoint(lake, key, outcome.version, configuration=configuration)
    return outcome


class _NoChangesError(Exception):
    """There is nothing to commit."""


class FileEffect(Enum):
    """Effect of a replacement on a file: it stays unchanged, is removed, or is rewritten without the matching rows."""

    UNCHANGED = "stays"
    REMOVED = "goes"
    REWRITTEN = "divided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """Input of a replacement of rows, like Delta's `replaceWhere`.

    Args:
        rows: new rows with the table's columns; each table becomes a file per partition.
        classify_file: returns the effect on a file, given its add action. Removed files are not read.
        retained_rows: returns the rows to keep of one partition's rewritten files, as one table per new file.
        predicate: the condition as SQL text, for the commit's `operationParameters`.
        step: step of the commit; nothing is committed if the table has this version or a later one.
    """

    rows: Sequence[pa.Table]
    classify_file: Callable[[Action], FileEffect]
    retained_rows: Callable[[pa.Table], Sequence[pa.Table]]
    predicate: str
    step: Step
    user_metadata: str


@dataclass(frozen=True, slots=True)
class ReplaceOutcome:
    """Result of a replacement. If nothing was committed, because the table changed or has the step, `version`
    is None."""

    version: int | None
    rows: int = 0
    copied_rows: int = 0


def replace_rows(
    lake: Lake, objects: ObjectStore, key: str, replacement: Replacement, *, expected: TableState
) -> ReplaceOutcome:
    """Commits a replacement to the table at `key`. Idempotent per step; safe with concurrent writers.

    After a conflict, the replacement is computed again on the newest version. Nothing is committed if the table's
    columns, properties or features differ from `expected`, or if it has the step.

    Raises:
        ConcurrencyError: COMMIT_CONTENDED after `commit_attempts`.
        ContractError: see `state_at`.
    """
    written: list[WrittenFile] = []
    copied: list[WrittenFile] = []

    def rewrite(state: TableState, files: DataFiles) -> Rewrite | None:
        nonlocal written, copied
        if has_changed_metadata(state, expected):
            return None
        effects = [(added, replacement.classify_file(added)) for added in state.files.values()]
        removed = [added for added, effect in effects if effect is not FileEffect.UNCHANGED]
        written = [file for rows in replacement.rows for file in files.write_rows(rows)]
        rewritten = [added for added, effect in effects if effect is FileEffect.REWRITTEN]
        copied = _copy_retained_rows(files, rewritten, replacement.retained_rows)
        return Rewrite(removed=removed, added=[*written, *copied], metrics=_metrics(removed, written, copied))

    commit = FilesCommit(
        step=replacement.step,
        user_metadata=replacement.user_metadata,
        operation="WRITE",
        parameters=overwrite_parameters(replacement.predicate),
        marks_change=False,
        action=f"commit {replacement.step.app_id} at {replacement.step.version}",
    )
    outcome = commit_rewrite(lake, objects, key, rewrite, commit=commit, expected=expected)
    if outcome is None or not outcome.newly_committed:
        return ReplaceOutcome(None)
    return ReplaceOutcome(outcome.version, sum(file.rows for file in written), sum(file.rows for file in copied))


def overwrite_parameters(predicate: str) -> dict[str, str | None]:
    """Returns the `operationParameters` of Delta's `replaceWhere`."""
    return {"mode": "Overwrite", "partitionBy": "[]", "predicate": predicate}


def has_changed_metadata(state: TableState, expected: TableState) -> bool:
    """Returns whether columns, properties or required features of a table differ from those of an earlier state."""
    return (state.protocol, state.metadata) != (expected.protocol, expected.metadata)


def _copy_retained_rows(
    files: DataFiles, rewritten: Sequence[Action], retained_rows: Callable[[pa.Table], Sequence[pa.Table]]
) -> list[WrittenFile]:
    rows_by_partition: dict[Partition, list[pa.Table]] = {}
    for added in rewritten:
        partition = tuple((added.get("partitionValues") or {}).items())
        rows_by_partition.setdefault(partition, []).append(files.read_declared(added))
    return [
        file
        for partition, tables in rows_by_partition.items()
        for part in retained_rows(pa.concat_tables(tables))
        for file in files.write(dict(partition), part.to_batches())
    ]


def _metrics(
    removed: Sequence[Action], written: Sequence[WrittenFile], copied: Sequence[WrittenFile]
) -> dict[str, int]:
    """Returns the operation metrics with Delta's names."""
    files = [*written, *copied]
    return {
        "numFiles": len(files),
        "numOutputBytes": sum(file.size for file in files),
        # Delta includes copied rows in the output rows.
        "numOutputRows": sum(file.rows for file in files),
        "numCopiedRows": sum(file.rows for file in copied),
        "numRemovedFiles": len(removed),
        "numRemovedBytes": sum(int(added.get("size") or 0) for added in removed),
    }
