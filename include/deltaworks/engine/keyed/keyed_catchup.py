"""Merges new rows of a history table into its keyed table.

Each merge commits the history version it reached as its application transaction, so after a crash the two Delta logs
show which rows are missing. The history's log names the files added and removed since then. If rows were only appended,
these are merged. Any other change (mutation, reprocess, restore, DELETE) also removes files; then the latest row of
every key in an added or removed file is looked up in the history.

A live table of kind `latest` works the same way, with some columns and a retention window.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field

from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from deltaworks.control.provenance import user_metadata
from deltaworks.engine.keyed.merge import (
    KeyedMerge,
    MergeGuard,
    MergeOutcome,
    distinct_keys,
    files_with_keys,
    iter_latest_rows,
    key_chunks,
    latest_rows_of_keys,
    with_removed_keys,
)
from deltaworks.engine.keyed.retention_window import EVENT_TIME, Expiry, RetentionWindow
from deltaworks.errors import ContractError, FencedError
from deltaworks.specs.descriptions import table_descriptions
from deltaworks.specs.keyed import KeyedTable
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.arrow_types import arrow_schema, rows_as_declared
from deltaworks.tables.commit import (
    Step,
    check_owner_epoch,
    commit_step,
    raise_owner_epoch,
    refresh,
    transaction_version,
)
from deltaworks.tables.descriptions import ensure_described
from deltaworks.tables.features import has_deletion_vectors
from deltaworks.tables.files import open_parquet, split_by_partition, write_file
from deltaworks.tables.lake import Lake, arrow_path, iter_row_batches, rows_of
from deltaworks.tables.log import Action, commit_history, read_commits, state_at
from deltaworks.tables.steps import keyed_application
from deltaworks.tables.variant import delta_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Changed files of the history table.

#: Above this number of new commits the complete history is read.
MAX_COMMITS = 5_000
_BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedFiles:
    """The added and removed files. If they are unknown, `reason` says why, and all rows must be read."""

    added: tuple[Action, ...] = ()
    removed: tuple[Action, ...] = ()
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.reason)

    @property
    def removed_bytes(self) -> int:
        """Total size of the removed files, without those that were added in the same commits."""
        added_paths = {action["path"] for action in self.added}
        return sum(int(action.get("size") or 0) for action in self.removed if action["path"] not in added_paths)


def changed_files(lake: Lake, key: str, *, after_version: int | None, up_to_version: int) -> ChangedFiles:
    """Returns the files added and removed after `after_version` of the table at `key`. Reads one small object per
    commit.
    """
    if after_version is None:
        return ChangedFiles(reason="it has not been built from its history yet")
    if after_version > up_to_version:
        return ChangedFiles(reason=f"version {up_to_version} of its history is older than {after_version}")
    if up_to_version - after_version > MAX_COMMITS:
        return ChangedFiles(reason=f"its history has had {up_to_version - after_version} commits since")
    added: list[Action] = []
    removed: list[Action] = []
    for version, actions in read_commits(lake, key, range(after_version + 1, up_to_version + 1)):
        if actions is None:
            return ChangedFiles(reason=f"the commit of version {version} is no longer in the log of its history")
        for action in actions:
            for kind, target in (("add", added), ("remove", removed)):
                # OPTIMIZE does not change rows.
                if kind in action and action[kind].get("dataChange", True):
                    target.append(action[kind])
    return ChangedFiles(added=tuple(added), removed=tuple(removed))


def read_file_rows(
    lake: Lake, key: str, types: Mapping[str, str], files: Iterable[Action], *, columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Yields all rows of these files in parts, including rows deleted by deletion vectors.

    Args:
        types: types of all columns; columns missing in a file are null.

    Raises:
        FileNotFoundError: a removed file was already deleted.
    """
    schema = arrow_schema({name: types[name] for name in columns})
    root = arrow_path(lake.storage, key)
    for action in files:
        partition = action.get("partitionValues") or {}
        with lake.filesystem.open_input_file(f"{root}/{unquote(action['path'])}") as source:
            file = open_parquet(source)
            present = [name for name in columns if name in file.schema_arrow.names]
            parts: Iterator[pa.RecordBatch]
            if present:
                parts = file.iter_batches(_BATCH_ROWS, columns=present)
            else:
                parts = iter([pa.record_batch({"\0": pa.nulls(file.metadata.num_rows)})])
            for part in parts:
                yield pa.Table.from_batches([rows_as_declared(part, schema, partition=partition)])


# The merge of their rows.

log = logging.getLogger(__name__)
OPERATION = "keyed_merge"
#: After this many history commits without changed rows (such as OPTIMIZE), the version reached is committed without
#: rows.
COMMITS_WITHOUT_ROWS = 50
#: Maximum number of commits of a keyed table that are searched for its last merge.
_MAX_COMMITS_READ = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUpResult:
    """Result of a catch-up: the history version reached, and its mode.

    Mode `newer` merged appended rows, `exact` replaced changed keys, `rebuilt` replaced all rows.
    """

    table: str
    mode: str
    history_version: int
    rows: int
    merges: int
    engine: str
    seconds: float
    reason: str = ""


class KeyedTableCatchUp:
    """Merges new history rows into one keyed table. Used by one thread at a time.

    Args:
        spark: for merges that exceed this process's memory; None if not available.
    """

    def __init__(
        self, spark: SparkSession | None, lake: Lake, spec: PipelineSpec, table: KeyedTable, owner: Step
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._pipeline = spec.pipeline
        self._properties = spec.maintenance.table_properties()
        self._description = table_descriptions(spec)[table.name]
        self._table = table
        self._owner = owner
        self._key = paths.table(spec.pipeline, table.name)
        self._history_key = paths.table(spec.pipeline, table.history)
        self._history: DeltaTable | None = None
        self._keyed: DeltaTable | None = None
        self._application = ""
        self._caught_up_version = -1
        self._window = RetentionWindow(table.expire_after_minutes)
        self._expiry = Expiry(self._window, owner, expire_after_minutes=table.expire_after_minutes)

    def catch_up(self) -> CatchUpResult | None:
        """Merges all new history rows and deletes expired rows. Returns None if there are no new rows."""
        try:
            return self._catch_up_and_expire()
        except FencedError:
            raise
        except Exception:
            # The tables are reopened by the next check, because the cached handles may be inconsistent.
            self._history = self._keyed = None
            raise

    def _catch_up_and_expire(self) -> CatchUpResult | None:
        history = self._newest_history()
        if history is None:
            return None
        result = None
        if self._keyed is None or history.version() != self._caught_up_version:
            result = self._catch_up_to(history)
        if self._keyed is not None:
            # Rows expire as time passes, even if none arrive.
            metadata = self._merge_guard(None, Step(self._application, self._caught_up_version)).user_metadata
            self._expiry.run_if_due(self._keyed, metadata)
        return result

    def _catch_up_to(self, history: DeltaTable) -> CatchUpResult | None:
        keyed = self._keyed or self._open(history)
        version = history.version()
        started = time.monotonic()
        refresh(keyed)
        merged_version = transaction_version(keyed, self._application)
        changes = changed_files(self._lake, self._history_key, after_version=merged_version, up_to_version=version)
        result = None
        if changes or (merged_version is not None and version - merged_version >= COMMITS_WITHOUT_ROWS):
            result = self._merge_changes(history, keyed, changes, started)
        self._caught_up_version = version
        return result

    def _newest_history(self) -> DeltaTable | None:
        if self._history is None:
            self._history = self._lake.open(self._history_key)
        else:
            refresh(self._history)
        return self._history

    def _open(self, history: DeltaTable) -> DeltaTable:
        """Opens or creates the keyed table, and fences former owners."""
        created = user_metadata(pipeline=self._pipeline, batch="none", operation="create_table")
        keyed = ensure_described(
            self._lake,
            self._key,
            arrow_schema(dict(self._table.types)),
            self._description,
            user_metadata=created,
            partition_by=self._table.partition_by,
            properties=self._properties,
        )
        self._check_partitioning(keyed)
        self._add_columns(keyed, created)
        metadata = user_metadata(
            pipeline=self._pipeline,
            batch="none",
            operation="raise_owner",
            step=self._owner.app_id,
            step_version=self._owner.version,
        )
        raise_owner_epoch(keyed, self._owner, user_metadata=metadata)
        check_owner_epoch(keyed, self._owner)
        digest = self._table.digest(str(history.metadata().id))
        self._application = self._application_for(keyed, keyed_application(self._pipeline, self._table.name, digest))
        if self._window.is_bounded:
            self._window.observe(rows_of(self._lake, keyed, columns=[EVENT_TIME]).column(EVENT_TIME))
        self._keyed = keyed
        return keyed

    def _check_partitioning(self, keyed: DeltaTable) -> None:
        on_disk, declared = keyed.metadata().partition_columns, list(self._table.partition_by)
        if on_disk != declared:
            raise ContractError(
                "TABLE_PARTITIONING_DIFFERS",
                f"Table {self._table.name!r} is partitioned by {', '.join(on_disk) or 'nothing'} on disk and by "
                f"{', '.join(declared) or 'nothing'} in pipeline.yaml.",
                hint="Declare the partitioning the table has, or give `keyed` another `table`.",
            )

    def _add_columns(self, keyed: DeltaTable, metadata: str) -> None:
        on_disk = {field.name: field for field in keyed.schema().fields}
        declared = delta_schema(arrow_schema(dict(self._table.types))).fields
        mismatched = [field for field in declared if field.name in on_disk and on_disk[field.name].type != field.type]
        if mismatched:
            names = ", ".join(field.name for field in mismatched)
            raise ContractError(
                "TABLE_SCHEMA_DIFFERS",
                f"Table {self._table.name!r} has other types than its history {self._table.history!r}: {names}.",
                hint="Give it another name: it is built from the history at the stream's next start.",
            )
        missing = [Field(field.name, field.type, nullable=True) for field in declared if field.name not in on_disk]
        if missing:
            properties = CommitProperties(custom_metadata={"userMetadata": metadata})
            keyed.alter.add_columns(missing, commit_properties=properties)
            refresh(keyed)

    def _application_for(self, keyed: DeltaTable, application: str) -> str:
        """Returns the id of the application transaction that stores the merged history version.

        If another writer changed rows of the keyed table, a new id is returned, so that the table is rebuilt: a RESTORE
        or manual statement does not change the stored version.
        """
        for commit in commit_history(self._lake, self._key, newest=keyed.version(), limit=_MAX_COMMITS_READ):
            step = str(commit.metadata.get("step", ""))
            if commit.metadata.get("operation") == OPERATION and (
                step == application or step.startswith(f"{application}/")
            ):
                return step
            if commit.changes_rows:
                return f"{application}/v{commit.version}"
        return application

    def _merge_changes(
        self, history: DeltaTable, keyed: DeltaTable, changes: ChangedFiles, started: float
    ) -> CatchUpResult:
        version = history.version()
        step = Step(self._application, version)
        if not changes.reason and changes.removed_bytes > _table_bytes(history):
            changes = ChangedFiles(reason="most rows of its history were replaced or removed")
        try:
            mode, outcomes = self._merge_by_mode(history, keyed, changes, step)
        except FileNotFoundError as error:
            changes = ChangedFiles(reason=f"a file of its history was deleted: {error}")
            mode, outcomes = self._merge_by_mode(history, keyed, changes, step)
        result = CatchUpResult(
            table=self._table.name,
            mode=mode,
            history_version=version,
            rows=sum(outcome.rows for outcome in outcomes),
            merges=len(outcomes),
            engine=next((outcome.engine for outcome in outcomes if outcome.engine), ""),
            seconds=time.monotonic() - started,
            reason=changes.reason,
        )
        log.info(
            "pipeline=%s table=%s %s rows=%d merges=%d engine=%s history_version=%d seconds=%.2f %s",
            self._pipeline,
            result.table,
            result.mode,
            result.rows,
            result.merges,
            result.engine,
            version,
            result.seconds,
            result.reason,
        )
        return result

    def _merge_by_mode(
        self, history: DeltaTable, keyed: DeltaTable, changes: ChangedFiles, step: Step
    ) -> tuple[str, list[MergeOutcome]]:
        if changes.reason:
            return "rebuilt", list(self._rebuild(history, keyed, step))
        if changes.removed:
            return "exact", list(self._merge_exact(history, keyed, changes, step))
        return "newer", list(self._merge_newer(keyed, self._rows_of_files(changes.added), step))

    def _rows_of_files(self, files: Iterable[Action]) -> Iterator[pa.Table]:
        """Yields the rows of history files within the retention window."""
        types, recent_files = self._table.history_types, self._window.filter_files(files)
        parts = read_file_rows(self._lake, self._history_key, types, recent_files, columns=list(types))
        return map(self._window.filter_rows, parts)

    def _merge_newer(self, keyed: DeltaTable, parts: Iterable[pa.Table], step: Step) -> Iterator[MergeOutcome]:
        """Merges the latest of these rows, in parts; the last part also commits the step."""
        merge = self._new_merge(keyed)
        for part, is_last in _mark_last(iter_latest_rows(self._table, parts), default=self._no_rows()):
            yield merge.merge(part, exact=False, guard=self._merge_guard(step if is_last else None, step))

    def _merge_exact(
        self, history: DeltaTable, keyed: DeltaTable, changes: ChangedFiles, step: Step
    ) -> Iterator[MergeOutcome]:
        """Replaces the row of every key in added or removed files by its latest row in the history."""
        by, types = self._table.by, self._table.history_types
        files = self._window.filter_files((*changes.removed, *changes.added))
        keys = distinct_keys(self._table, read_file_rows(self._lake, self._history_key, types, files, columns=by))
        merge = self._new_merge(keyed)
        for part, is_last in _mark_last(key_chunks(keys), default=keys):
            rows, removed_keys = latest_rows_of_keys(self._table, self._rows_of_keys(history, part), part)
            guard = self._merge_guard(step if is_last else None, step)
            yield merge.merge(with_removed_keys(self._table, rows, removed_keys), exact=True, guard=guard)

    def _rows_of_keys(self, history: DeltaTable, keys: pa.Table) -> Iterator[pa.Table]:
        """Yields the rows of the history files that may contain these keys; other keys' rows are included."""
        if has_deletion_vectors(history):
            return self._all_rows(history)
        # pyarrow dataset filters fail on string statistics written by delta-rs.
        return self._rows_of_files(files_with_keys(self._table, self._files(history), keys))

    def _files(self, history: DeltaTable) -> Iterable[Action]:
        state = state_at(self._lake, open_objects(self._lake.storage), self._history_key, history.version())
        return state.files.values()

    def _all_rows(self, history: DeltaTable) -> Iterator[pa.Table]:
        """Yields all rows of the history within the retention window."""
        if self._window.is_bounded and not has_deletion_vectors(history):
            files = list(self._files(history))
            self._window.observe_files(files)
            return self._rows_of_files(files)
        return map(
            self._window.filter_rows, iter_row_batches(self._lake, history, columns=list(self._table.history_types))
        )

    def _rebuild(self, history: DeltaTable, keyed: DeltaTable, step: Step) -> Iterator[MergeOutcome]:
        """Replaces all rows by the latest row per key of the complete history, in several commits if it is large."""
        self._window.reset()
        parts = self._all_rows(history)
        merge = self._new_merge(keyed)
        has_replaced = False
        for part, is_last in _mark_last(iter_latest_rows(self._table, parts), default=self._no_rows()):
            if has_replaced:
                yield merge.merge(part, exact=False, guard=self._merge_guard(step if is_last else None, step))
                continue
            has_replaced = True
            first = step if is_last else Step(f"{step.app_id}/begun", step.version)
            yield self._replace(keyed, part, self._merge_guard(first, step))

    def _replace(self, keyed: DeltaTable, rows: pa.Table, guard: MergeGuard) -> MergeOutcome:
        assert guard.step is not None
        root = arrow_path(self._lake.storage, self._key)
        parts = split_by_partition(rows, self._table.partition_by) if rows.num_rows else []
        files = [write_file(self._lake.filesystem, root, part, partition=values) for values, part in parts]
        outcome = commit_step(
            keyed,
            [file.add_action() for file in files],
            step=guard.step,
            owner=guard.owner_step,
            user_metadata=guard.user_metadata,
            recreate_as=keyed.schema(),
        )
        return MergeOutcome(engine="delta_rs", version=outcome.version, rows=rows.num_rows, files_added=len(files))

    def _new_merge(self, keyed: DeltaTable) -> KeyedMerge:
        return KeyedMerge(self._spark, self._lake, self._key, self._table, keyed)

    def _no_rows(self) -> pa.Table:
        return arrow_schema(dict(self._table.types)).empty_table()

    def _merge_guard(self, step: Step | None, final_step: Step) -> MergeGuard:
        metadata = user_metadata(
            pipeline=self._pipeline,
            batch="none",
            operation=OPERATION,
            history=self._table.history,
            # All parts of a large merge have the same metadata; only the last one has the transaction.
            step=final_step.app_id,
            step_version=final_step.version,
            complete=step == final_step,
        )
        return MergeGuard(owner_step=self._owner, step=step, user_metadata=metadata)


def _table_bytes(table: DeltaTable) -> int:
    return sum(pa.table(table.get_add_actions(flatten=False)).column("size_bytes").to_pylist())


def _mark_last(parts: Iterable[pa.Table], *, default: pa.Table) -> Iterator[tuple[pa.Table, bool]]:
    """Yields each part with a flag for the last one. Yields `default` as the last part if there are no parts."""
    previous: pa.Table | None = None
    for part in parts:
        if previous is not None:
            yield previous, False
        previous = part
    yield default if previous is None else previous, True
