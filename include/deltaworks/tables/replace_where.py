"""Replaces rows that match a predicate in one commit, like Delta's `replaceWhere`, without a JVM.

For a few thousand rows, a Spark job takes seconds, mostly to read the log and find files. Here the log is read once.
Files whose rows all match are removed without being read; files with some matching rows are rewritten. The commit has
exactly the version after the one that was read, so it never overwrites another writer's commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from deltaworks.control.objects import ObjectStore
from deltaworks.tables.arrow_types import rows_as_declared
from deltaworks.tables.commit import Step, guarded_commit
from deltaworks.tables.files import WrittenFile, split_by_partition, write_file, write_file_body
from deltaworks.tables.files_commit import reasons_against_files_commit
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import Action, TableState, parse_schema_string, state_at
from deltaworks.tables.log_writer import commit_info, remove_action, txn_action, write_commit, write_due_checkpoint
from deltaworks.tables.statistics import IndexedColumns


class FileEffect(Enum):
    """Effect of a replacement on a file: it stays unchanged, is removed, or is rewritten without the matching rows."""

    UNCHANGED = "stays"
    REMOVED = "goes"
    REWRITTEN = "divided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """Input of a replacement of rows.

    Args:
        rows: new rows with the table's columns; each table becomes one file per partition.
        classify_file: returns the effect on a file, given its add action.
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
    written = [file for rows in replacement.rows for file in _write_rows(lake, key, expected, rows)]

    def attempt(number: int) -> ReplaceOutcome | None:
        state = expected if number == 1 else state_at(lake, objects, key)
        if is_step_committed(state, replacement.step) or _has_changed_metadata(state, expected):
            return ReplaceOutcome(None)
        effects = [(added, replacement.classify_file(added)) for added in state.files.values()]
        rewritten = [added for added, effect in effects if effect is FileEffect.REWRITTEN]
        removed = [added for added, effect in effects if effect is not FileEffect.UNCHANGED]
        copied = _rewrite_files(lake, key, expected, rewritten, replacement.retained_rows)
        actions = _actions(state, replacement, removed, written, copied)
        if not write_commit(objects, key, state.version + 1, actions):
            return None
        write_due_checkpoint(lake, key, state.version + 1, configuration=state.configuration)
        rows = sum(file.rows for file in written)
        return ReplaceOutcome(state.version + 1, rows, sum(file.rows for file in copied))

    return guarded_commit(key, attempt, action=f"commit {replacement.step.app_id} at {replacement.step.version}")


def is_step_committed(state: TableState, step: Step) -> bool:
    """Returns whether a table has this version of a step, or a later one."""
    return state.transactions.get(step.app_id, -1) >= step.version


def _has_changed_metadata(state: TableState, expected: TableState) -> bool:
    return (state.protocol, state.metadata) != (expected.protocol, expected.metadata)


def reasons_against_replacing(state: TableState) -> list[str]:
    """Returns why this process may not replace rows of a table, by its files and features; empty if it may.

    Column properties are not checked here; see `features.reasons_against_rewriting`.
    """
    vectors = ["deletion vectors"] if any(added.get("deletionVector") for added in state.files.values()) else []
    return reasons_against_files_commit(state) + vectors


def _write_rows(lake: Lake, key: str, state: TableState, rows: pa.Table) -> list[WrittenFile]:
    if not rows.num_rows:
        return []
    root, indexed = arrow_path(lake.storage, key), _indexed_columns(state)
    parts = split_by_partition(rows, state.metadata["partitionColumns"])
    return [write_file(lake.filesystem, root, part, partition=values, indexed=indexed) for values, part in parts]


def _indexed_columns(state: TableState) -> IndexedColumns:
    return IndexedColumns.of(state.configuration)


def _rewrite_files(
    lake: Lake,
    key: str,
    state: TableState,
    rewritten: Sequence[Action],
    retained_rows: Callable[[pa.Table], Sequence[pa.Table]],
) -> list[WrittenFile]:
    """Writes new files with the retained rows of the files to rewrite."""
    schema = parse_schema_string(state.metadata["schemaString"])
    partition_columns = state.metadata["partitionColumns"]
    body = pa.schema([field for field in schema if field.name not in partition_columns])
    root = arrow_path(lake.storage, key)
    rows_by_partition: dict[tuple[tuple[str, str | None], ...], list[pa.Table]] = {}
    for added in rewritten:
        with lake.filesystem.open_input_file(f"{root}/{unquote(added['path'])}") as source:
            file = pq.read_table(source, coerce_int96_timestamp_unit="us")
        partition = tuple((added.get("partitionValues") or {}).items())
        batches = [rows_as_declared(batch, body) for batch in file.to_batches()]
        rows_by_partition.setdefault(partition, []).append(pa.Table.from_batches(batches, schema=body))
    return [
        write_file_body(lake.filesystem, root, part, partition=dict(partition), indexed=_indexed_columns(state))
        for partition, tables in rows_by_partition.items()
        for part in retained_rows(pa.concat_tables(tables))
        if part.num_rows
    ]


def _actions(
    state: TableState,
    replacement: Replacement,
    removed: Sequence[Action],
    written: Sequence[WrittenFile],
    copied: Sequence[WrittenFile],
) -> list[Action]:
    now = int(time.time() * 1000)
    info = commit_info(
        "WRITE",
        user_metadata=replacement.user_metadata,
        at_ms=now,
        read_version=state.version,
        parameters={"mode": "Overwrite", "partitionBy": "[]", "predicate": replacement.predicate},
        metrics=_metrics(removed, written, copied),
    )
    removes = [remove_action(added, now) for added in removed]
    adds = [{"add": file.to_add_fields(at_ms=now, data_change=True)} for file in (*written, *copied)]
    return [info, txn_action(replacement.step, now), *removes, *adds]


def _metrics(
    removed: Sequence[Action], written: Sequence[WrittenFile], copied_files: Sequence[WrittenFile]
) -> dict[str, int]:
    """Returns the operation metrics with Delta's names."""
    files, copied_rows = [*written, *copied_files], sum(file.rows for file in copied_files)
    return {
        "numFiles": len(files),
        "numOutputBytes": sum(file.size for file in files),
        # Delta includes copied rows in the output rows.
        "numOutputRows": sum(file.rows for file in files),
        "numCopiedRows": copied_rows,
        "numRemovedFiles": len(removed),
        "numRemovedBytes": sum(int(added.get("size") or 0) for added in removed),
    }
