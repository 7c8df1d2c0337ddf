"""Brings a keyed table to the newest version of its history, by what the log of each says.

A keyed table names, in a transaction of its own commits, the version of its history that it has been brought to. So
nothing about it is on record elsewhere: whoever died, wherever, what is missing follows from the two logs. That the
history was appended to only is the usual case, and merges its new rows; any other change of it, by a mutation, a
reprocess or a restore, looks up the newest row of every key it touched in the history as it is then.

A live table of newest rows is the same, of some columns and as far back as its horizon reaches.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema

from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from deltaworks.control.provenance import user_metadata
from deltaworks.engine.keyed.affected import affected_keys, chosen_rows, files_of_keys, slices
from deltaworks.engine.keyed.changed_rows import ChangedFiles, changed_files, rows_of_files
from deltaworks.engine.keyed.horizon import EVENT_TIME, Forgetting, Horizon
from deltaworks.engine.keyed.merge import Guard, KeyedMerge, MergeOutcome, with_gone
from deltaworks.engine.keyed.newest import newest_of
from deltaworks.errors import ContractError, FencedError
from deltaworks.specs.keyed import KeyedTable
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import (
    Step,
    check_owner_epoch,
    commit_step,
    raise_owner_epoch,
    refresh,
    transaction_version,
)
from deltaworks.tables.features import has_deletion_vectors
from deltaworks.tables.files import split_by_partition, write_file
from deltaworks.tables.lake import Lake, arrow_path, iter_row_batches, rows_of
from deltaworks.tables.log import Action, commit_history, state_at
from deltaworks.tables.steps import keyed_application

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
OPERATION = "keyed_merge"
#: The step of a keyed table is recorded without rows once its history has had so many commits that changed none.
COMMITS_WITHOUT_ROWS = 50
#: Commits of a keyed table that are looked at for its last merge: nobody else changes its rows.
_LOOKED_BACK = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What was done for a keyed table: how (`newer`, `exact`, `rebuilt`), up to which version of its history."""

    table: str
    how: str
    history_version: int
    rows: int
    merges: int
    engine: str
    seconds: float
    reason: str = ""


class KeyedTableFollower:
    """Brings one keyed table up to date. Used by one thread at a time.

    Args:
        spark: merges what is too large for this process's memory; None where it does not run.
    """

    def __init__(
        self, spark: SparkSession | None, lake: Lake, spec: PipelineSpec, table: KeyedTable, owner: Step
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._pipeline = spec.pipeline
        self._properties = spec.maintenance.table_properties()
        self._table = table
        self._owner = owner
        self._key = paths.table(spec.pipeline, table.name)
        self._history_key = paths.table(spec.pipeline, table.history)
        self._history: DeltaTable | None = None
        self._opened: DeltaTable | None = None
        self._application = ""
        self._seen = -1
        self._horizon = Horizon(table.forget_minutes)
        self._forgetting = Forgetting(self._horizon, owner, forget_minutes=table.forget_minutes)

    def follow(self) -> Followed | None:
        """See `KeyedTables.follow`."""
        try:
            return self._follow()
        except FencedError:
            raise
        except Exception:
            # Whatever it was: the next look begins with the tables as they are.
            self._history = self._opened = None
            raise

    def _follow(self) -> Followed | None:
        history = self._newest_history()
        if history is None:
            return None
        followed = None
        if self._opened is None or history.version() != self._seen:
            followed = self._catch_up(history)
        if self._opened is not None:
            # Also while no rows come: what lies in the future becomes old as time goes by.
            metadata = self._guard(None, Step(self._application, self._seen)).user_metadata
            self._forgetting.look(self._opened, metadata)
        return followed

    def _catch_up(self, history: DeltaTable) -> Followed | None:
        opened = self._opened or self._open(history)
        version = history.version()
        began = time.monotonic()
        refresh(opened)
        landed = transaction_version(opened, self._application)
        changes = changed_files(self._lake, self._history_key, after_version=landed, up_to_version=version)
        followed = None
        if changes or (landed is not None and version - landed >= COMMITS_WITHOUT_ROWS):
            followed = self._apply(history, opened, changes, began)
        self._seen = version
        return followed

    def _newest_history(self) -> DeltaTable | None:
        if self._history is None:
            self._history = self._lake.open(self._history_key)
        else:
            refresh(self._history)
        return self._history

    def _open(self, history: DeltaTable) -> DeltaTable:
        """The keyed table, created where there is none; former owners are fenced."""
        made = user_metadata(pipeline=self._pipeline, batch="none", operation="create_table")
        opened = self._lake.ensure(
            self._key,
            arrow_schema(dict(self._table.types)),
            user_metadata=made,
            partition_by=self._table.partition_by,
            properties=self._properties,
        )
        self._check_partitioning(opened)
        self._add_columns(opened, made)
        metadata = user_metadata(
            pipeline=self._pipeline,
            batch="none",
            operation="raise_owner",
            step=self._owner.app_id,
            step_version=self._owner.version,
        )
        raise_owner_epoch(opened, self._owner, user_metadata=metadata)
        check_owner_epoch(opened, self._owner)
        digest = self._table.digest(str(history.metadata().id))
        self._application = self._application_of(opened, keyed_application(self._pipeline, self._table.name, digest))
        if self._horizon.is_bounded:
            self._horizon.note(rows_of(self._lake, opened, columns=[EVENT_TIME]).column(EVENT_TIME))
        self._opened = opened
        return opened

    def _check_partitioning(self, opened: DeltaTable) -> None:
        on_disk, declared = opened.metadata().partition_columns, list(self._table.partition_by)
        if on_disk != declared:
            raise ContractError(
                "TABLE_PARTITIONING_DIFFERS",
                f"Table {self._table.name!r} is partitioned by {', '.join(on_disk) or 'nothing'} on disk and by "
                f"{', '.join(declared) or 'nothing'} in pipeline.yaml.",
                hint="Declare the partitioning the table has, or give `keyed` another `table`.",
            )

    def _add_columns(self, opened: DeltaTable, made: str) -> None:
        on_disk = {field.name: field for field in opened.schema().fields}
        declared = Schema.from_arrow(arrow_schema(dict(self._table.types))).fields
        different = [field for field in declared if field.name in on_disk and on_disk[field.name].type != field.type]
        if different:
            names = ", ".join(field.name for field in different)
            raise ContractError(
                "TABLE_SCHEMA_DIFFERS",
                f"Table {self._table.name!r} has other types than its history {self._table.history!r}: {names}.",
                hint="Give it another name: it is built from the history at the stream's next start.",
            )
        missing = [Field(field.name, field.type, nullable=True) for field in declared if field.name not in on_disk]
        if missing:
            properties = CommitProperties(custom_metadata={"userMetadata": made})
            opened.alter.add_columns(missing, commit_properties=properties)
            refresh(opened)

    def _application_of(self, opened: DeltaTable, own: str) -> str:
        """Under which name the versions of the history are counted: another one where its rows are not ours.

        What a RESTORE, or somebody's statement, has made of the rows, no transaction says. So they are built anew.
        """
        for commit in commit_history(self._lake, self._key, newest=opened.version(), limit=_LOOKED_BACK):
            step = str(commit.metadata.get("step", ""))
            if commit.metadata.get("operation") == OPERATION and (step == own or step.startswith(f"{own}/")):
                return step
            if commit.changes_rows:
                return f"{own}/v{commit.version}"
        return own

    def _apply(self, history: DeltaTable, opened: DeltaTable, changes: ChangedFiles, began: float) -> Followed:
        version = history.version()
        step = Step(self._application, version)
        if not changes.reason and changes.removed_bytes > _bytes_of(history):
            changes = ChangedFiles(reason="most rows of its history have been replaced or removed")
        try:
            how, done = self._by_changes(history, opened, changes, step)
        except FileNotFoundError as gone:
            changes = ChangedFiles(reason=f"a file that its history had since is gone: {gone}")
            how, done = self._by_changes(history, opened, changes, step)
        followed = Followed(
            table=self._table.name,
            how=how,
            history_version=version,
            rows=sum(outcome.rows for outcome in done),
            merges=len(done),
            engine=next((outcome.engine for outcome in done if outcome.engine), ""),
            seconds=time.monotonic() - began,
            reason=changes.reason,
        )
        log.info(
            "pipeline=%s table=%s %s rows=%d merges=%d engine=%s history_version=%d seconds=%.2f %s",
            self._pipeline,
            followed.table,
            followed.how,
            followed.rows,
            followed.merges,
            followed.engine,
            version,
            followed.seconds,
            followed.reason,
        )
        return followed

    def _by_changes(
        self, history: DeltaTable, opened: DeltaTable, changes: ChangedFiles, step: Step
    ) -> tuple[str, list[MergeOutcome]]:
        if changes.reason:
            return "rebuilt", list(self._rebuild(history, opened, step))
        if changes.removed:
            return "exact", list(self._look_up(history, opened, changes, step))
        return "newer", list(self._merge_newer(opened, self._rows(changes.added), step))

    def _rows(self, files: Iterable[Action]) -> Iterator[pa.Table]:
        """The rows of files of the history that are not to be forgotten."""
        types, reached = self._table.history_types, self._horizon.reached(files)
        parts = rows_of_files(self._lake, self._history_key, types, reached, columns=list(types))
        return map(self._horizon.kept, parts)

    def _merge_newer(self, opened: DeltaTable, parts: Iterable[pa.Table], step: Step) -> Iterator[MergeOutcome]:
        """Merge the newest of these rows; the step lands with the last part of them."""
        merge = self._merge(opened)
        for part, is_last in _with_last(newest_of(self._table, parts), nothing=self._no_rows()):
            yield merge.merge(part, exact=False, guard=self._guard(step if is_last else None, step))

    def _look_up(
        self, history: DeltaTable, opened: DeltaTable, changes: ChangedFiles, step: Step
    ) -> Iterator[MergeOutcome]:
        """Bring every key of rows that came or went to what the history has of it now."""
        by, types = self._table.by, self._table.history_types
        files = self._horizon.reached((*changes.removed, *changes.added))
        keys = affected_keys(self._table, rows_of_files(self._lake, self._history_key, types, files, columns=by))
        merge = self._merge(opened)
        for part, is_last in _with_last(slices(keys), nothing=keys):
            rows, gone = chosen_rows(self._table, self._rows_of_keys(history, part), part)
            guard = self._guard(step if is_last else None, step)
            yield merge.merge(with_gone(self._table, rows, gone), exact=True, guard=guard)

    def _rows_of_keys(self, history: DeltaTable, keys: pa.Table) -> Iterator[pa.Table]:
        """Rows of the history, all of these keys among them."""
        if has_deletion_vectors(history):
            return self._all_rows(history)
        # Not by a filter of pyarrow's dataset: it fails on statistics of texts in files that delta-rs has written.
        return self._rows(files_of_keys(self._table, self._files(history), keys))

    def _files(self, history: DeltaTable) -> Iterable[Action]:
        state = state_at(self._lake, open_objects(self._lake.storage), self._history_key, history.version())
        return state.files.values()

    def _all_rows(self, history: DeltaTable) -> Iterator[pa.Table]:
        """All rows of the history that are not to be forgotten."""
        if self._horizon.is_bounded and not has_deletion_vectors(history):
            files = list(self._files(history))
            self._horizon.note_files(files)
            return self._rows(files)
        return map(self._horizon.kept, iter_row_batches(self._lake, history, columns=list(self._table.history_types)))

    def _rebuild(self, history: DeltaTable, opened: DeltaTable, step: Step) -> Iterator[MergeOutcome]:
        """Replace all rows by the newest of the whole history; larger tables grow to that in several commits."""
        self._horizon.reset()
        parts = self._all_rows(history)
        merge = self._merge(opened)
        begun = False
        for part, is_last in _with_last(newest_of(self._table, parts), nothing=self._no_rows()):
            if begun:
                yield merge.merge(part, exact=False, guard=self._guard(step if is_last else None, step))
                continue
            begun = True
            first = step if is_last else Step(f"{step.app_id}/begun", step.version)
            yield self._replace(opened, part, self._guard(first, step))

    def _replace(self, opened: DeltaTable, rows: pa.Table, guard: Guard) -> MergeOutcome:
        assert guard.step is not None
        root = arrow_path(self._lake.storage, self._key)
        parts = split_by_partition(rows, self._table.partition_by) if rows.num_rows else []
        files = [write_file(self._lake.filesystem, root, part, partition=values) for values, part in parts]
        outcome = commit_step(
            opened,
            [file.add_action() for file in files],
            step=guard.step,
            owner=guard.owner,
            user_metadata=guard.user_metadata,
            recreate_as=opened.schema(),
        )
        return MergeOutcome(engine="delta_rs", version=outcome.version, rows=rows.num_rows, files_added=len(files))

    def _merge(self, opened: DeltaTable) -> KeyedMerge:
        return KeyedMerge(self._spark, self._lake, self._key, self._table, opened)

    def _no_rows(self) -> pa.Table:
        return arrow_schema(dict(self._table.types)).empty_table()

    def _guard(self, step: Step | None, whole: Step) -> Guard:
        metadata = user_metadata(
            pipeline=self._pipeline,
            batch="none",
            operation=OPERATION,
            history=self._table.history,
            # Parts of a larger merge name it too, without its transaction.
            step=whole.app_id,
            step_version=whole.version,
            complete=step == whole,
        )
        return Guard(owner=self._owner, step=step, user_metadata=metadata)


def _bytes_of(table: DeltaTable) -> int:
    return sum(pa.table(table.get_add_actions(flatten=False)).column("size_bytes").to_pylist())


def _with_last(parts: Iterable[pa.Table], *, nothing: pa.Table) -> Iterator[tuple[pa.Table, bool]]:
    """Each part, and whether it is the last one; `nothing` where there is none."""
    before: pa.Table | None = None
    for part in parts:
        if before is not None:
            yield before, False
        before = part
    yield nothing if before is None else before, True
