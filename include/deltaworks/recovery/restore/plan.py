"""Plans the restore of one table (the version, the lost batches, the files of the table afterwards), and a start over
of a pipeline or its rollback to one batch, with the action for each table and the rows that it loses.

Writes nothing. An interrupted rollback is planned again from its record, against the current table. Batches after a
rollback are read again from the source in a new generation, so all their rows are removed, including quarantined ones
and added columns.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from urllib.parse import unquote

import pyarrow as pa

from deltaworks import __version__
from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.provenance import current_person, current_run
from deltaworks.control.records.generations import LostCommit, Rollback, RowSource, StartOver, TableLoss
from deltaworks.engine.batch_history import BatchHistory, BatchSummary
from deltaworks.errors import ConfigError, ContractError
from deltaworks.events.reasons import QUARANTINE_PARTITION, QUARANTINE_SCHEMA, QUARANTINE_TABLE
from deltaworks.recovery.restore.lost_commits import LostCommits, LostTablePart, add_actions
from deltaworks.recovery.restore.restore_points import (
    RestorePoint,
    ambiguous_point_error,
    undone_changes,
    version_at_batch,
    version_at_time,
)
from deltaworks.specs.live import LIVE_PARTITION
from deltaworks.specs.mutation import INTERVALS_COLUMNS, NAMES_COLUMNS, ORG_COLUMN
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.file_workers import count_rows, rows_unknown_error, table_rows, with_row_counts
from deltaworks.tables.files_commit import StateDifference, TargetState, check_supported
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import Action, FileId, TableState, commit_history, row_count, state_at, total_rows
from deltaworks.tables.protected_files import find_missing_files
from deltaworks.tables.steps import read_last_completed
from deltaworks.tables.table_swap import table_content

_NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRestoreRequest:
    """The version to restore, and where later rows are recovered from.

    `exclude_files` are lost files of that version, and `reread_batches` are the batches with rows in them. With
    `repair="source"` these batches also count as lost.
    """

    point: RestorePoint
    repair: RowSource = "prepared"
    max_rows: int | None = None
    reason: str = ""
    exclude_files: tuple[str, ...] = ()
    reread_batches: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TableRestorePlan:
    """A rollback of one table: its record, its current state, and its target state.

    `unprepared` lists lost batches whose files no longer exist. All other required files that are missing are in
    `missing_files`.
    """

    record: Rollback
    current: TableState
    target: TargetState
    unprepared: tuple[int, ...] = ()
    missing_files: tuple[str, ...] = ()

    @property
    def rows_removed(self) -> int | None:
        """The number of rows in removed files; None if it is unknown. Lost files without a count are not included,
        because the restore cannot take their rows away any more.
        """
        removed = [added for file, added in self.current.files.items() if file not in self.target.files]
        lost = set(self.record.dropped_files)
        return total_rows(
            added for added in removed if unquote(added["path"]) not in lost or row_count(added) is not None
        )

    @property
    def difference(self) -> StateDifference:
        """The number of files and rows that are removed and added."""
        return StateDifference.between(self.current, self.target)

    def check(self, max_rows: int | None) -> None:
        """Rejects a plan that would silently drop rows, or remove more than `max_rows`.

        Raises:
            ConfigError: RESTORE_UNBOUNDED, RESTORE_TOO_LARGE.
            ContractError: RESTORE_FILES_MISSING, RESTORE_UNPREPARED, ROWS_UNKNOWN.
        """
        reject_missing_files(self.current.key, self.missing_files)
        if self.unprepared and self.record.row_source == "prepared":
            raise _unprepared_error(self.record.pipeline, self.record.table, self.unprepared)
        name, rows = f"{self.record.pipeline}.{self.record.table}", self.rows_removed
        if rows is None:
            raise rows_unknown_error(
                name, [added["path"] for added in self.current.files.values() if row_count(added) is None]
            )
        if max_rows is None:
            raise ConfigError(
                "RESTORE_UNBOUNDED",
                f"Going back takes files of {rows} rows out of {name}, and no bound was given.",
                hint=f"Check the dry run, then pass the bound too: --max-rows {rows}.",
            )
        if rows > max_rows:
            raise ConfigError(
                "RESTORE_TOO_LARGE", f"Going back would take files of {rows} rows out of {name}, more than {max_rows}."
            )


class TableRestorePlanner:
    """Plans rollbacks of one table. Not thread-safe."""

    def __init__(self, spec: PipelineSpec, table: str, lake: Lake, home: PipelineHome) -> None:
        self._spec = spec
        self._pipeline = spec.pipeline
        self._table = table
        self._lake = lake
        self._home = home
        self._key = home.table(table)

    def plan_table(self, request: TableRestoreRequest) -> TableRestorePlan:
        """Plans a new rollback.

        Raises:
            ConfigError: BATCH_UNKNOWN.
            ContractError: RESTORE_UNSUPPORTED, RESTORE_GENERATION_ENDED, RESTORE_COLUMNS_DIFFER, and the errors of
                reading the log.
        """
        now = self._current_supported_state()
        then = self._state(self._resolve_version(request.point, now))
        generation = self._home.generations.current()
        lost = self._lost_parts(then, now, generation)
        if request.repair != "none":
            _reject_changed_columns(then, now)
        record = Rollback(
            pipeline=self._pipeline,
            ordinal=self._home.rollbacks.newest() + 1,
            table=self._table,
            generation=generation,
            from_version=now.version,
            to_version=then.version,
            row_source=request.repair,
            lost=(*(loss.commit for loss in lost), *_partially_lost_commits(request.reread_batches, lost, generation)),
            undone_changes=undone_changes(
                self._lake,
                self._key,
                pipeline=self._pipeline,
                table=self._table,
                after=then.version,
                newest=now.version,
            ),
            dropped_files=request.exclude_files,
            by=current_person(),
            reason=request.reason,
            run=current_run(),
            at=iso_now(),
            code_version=__version__,
            reapply_erasures=self._spec.privacy is not None,
        )
        target = self._target_state(record, then, now, lost)
        missing = missing_files(self._lake, now, target)
        if request.repair != "prepared":
            return TableRestorePlan(record, now, target, missing_files=tuple(missing))
        return TableRestorePlan(record, now, target, *_classify_missing_files(missing, lost))

    def replan(self, record: Rollback) -> TableRestorePlan:
        """Plans a recorded rollback against the current table. Rows that landed after the record was created stay.

        Raises:
            ContractError: RESTORE_UNPREPARED.
        """
        then, now = self._state(record.to_version), self._state()
        generation = self._home.generations.current()
        return TableRestorePlan(
            record, now, self._target_state(record, then, now, self._lost_parts(then, now, generation))
        )

    def states_at_batch(self, batch: int, completed_at: dt.datetime | None) -> tuple[TableState, TableState]:
        """Returns two states of the table: at the batch's completion, and now.

        Raises:
            ContractError: RESTORE_UNSUPPORTED, and those of reading the log.
        """
        now = self._current_supported_state()
        return self._state(self._version_at_batch(batch, completed_at, now)), now

    def _state(self, version: int | None = None) -> TableState:
        """Returns the state at a version, with the row counts that statistics lack."""
        state = state_at(self._lake, self._home.objects, self._key, version)
        if state.rows is None:
            counted = with_row_counts(self._lake, self._key, list(state.files.values()))
            state.files = dict(zip(state.files, counted, strict=True))
        return state

    def _current_supported_state(self) -> TableState:
        now = self._state()
        check_supported(now)
        return now

    def _resolve_version(self, point: RestorePoint, now: TableState) -> int:
        if point.version is not None:
            return point.version
        if point.time is not None:
            return version_at_time(self._lake, self._key, point.time, newest=now.version)
        if point.batch is None:
            raise ambiguous_point_error()
        batch = BatchHistory(self._lake, self._home.objects, self._spec).detail(point.batch).summary
        return self._version_at_batch(batch.batch_id, batch.completed_at, now)

    def _version_at_batch(self, batch: int, completed_at: dt.datetime | None, now: TableState) -> int:
        return version_at_batch(
            self._lake,
            self._key,
            pipeline=self._pipeline,
            table=self._table,
            newest=now.version,
            batch=batch,
            completed_at=completed_at,
        )

    def _lost_parts(self, then: TableState, now: TableState, generation: int) -> list[LostTablePart]:
        earlier = self._home.rollbacks.table_rollbacks(self._table)
        skipped = {number for record, _ in earlier if record.row_source == "none" for number in record.batches}
        shares = LostCommits(self._lake, self._home, self._table)
        return shares.between(then, now, generation=generation, skipped=skipped)

    def _target_state(
        self, record: Rollback, then: TableState, now: TableState, lost: list[LostTablePart]
    ) -> TargetState:
        dropped = set(record.dropped_files)
        files = {file: added for file, added in then.files.items() if file[0] not in dropped}
        recorded = {(share.kind, share.number) for share in record.lost}
        for loss in lost:
            is_recorded = (loss.commit.kind, loss.commit.number) in recorded
            if is_recorded and record.row_source != "prepared":
                continue
            if loss.files is None and not is_recorded:
                # After a crash the stream wrote to the table again: this batch landed after the record was created.
                raise _unprepared_error(self._pipeline, self._table, (loss.commit.number,))
            files |= {file: now.files.get(file, added) for file, added in (loss.files or {}).items()}
        staged = self._home.rollbacks.staged(record.ordinal)
        files |= {} if staged is None else add_actions(staged.files)
        return with_columns_from(then, now, files) if record.row_source == "none" else TargetState(files)


def with_columns_from(then: TableState, now: TableState, files: dict[FileId, Action] | None = None) -> TargetState:
    """Returns these files (by default those of `then`) with the columns of `then` and all other properties of `now`."""
    columns = {name: then.metadata[name] for name in ("schemaString", "partitionColumns")}
    return TargetState(then.files if files is None else files, {**now.metadata, **columns})


def missing_files(lake: Lake, now: TableState, target: TargetState) -> list[str]:
    """Returns the files of the target that are not in the current table and do not exist in the storage."""
    back = {file: added for file, added in target.files.items() if file not in now.files}
    return find_missing_files(lake, now.key, back)


def reject_missing_files(key: str, missing: Sequence[str]) -> None:
    """Rejects a commit that would list missing files.

    Raises:
        ContractError: RESTORE_FILES_MISSING.
    """
    if missing:
        raise ContractError(
            "RESTORE_FILES_MISSING",
            f"{len(missing)} files that the version needs are missing in {key}, most likely removed by VACUUM: "
            f"{_abbreviate(missing)}.",
        )


def _partially_lost_commits(batches: tuple[int, ...], lost: list[LostTablePart], generation: int) -> list[LostCommit]:
    """Returns batches that lost some rows with missing files. The number of rows is known only after reading them."""
    wholly = {loss.commit.number for loss in lost if loss.commit.kind == "batch"}
    return [
        LostCommit(kind="batch", generation=generation, number=number, rows=0, files=0)
        for number in batches
        if number not in wholly
    ]


def _classify_missing_files(missing: list[str], lost: list[LostTablePart]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Separates lost batches without files from missing files that do not belong to a lost batch."""
    names = set(missing)
    unprepared = {
        loss.commit.number for loss in lost if loss.files is None or any(path in names for path, _ in loss.files)
    }
    of_batches = {path for loss in lost for path, _ in loss.files or ()}
    return tuple(sorted(unprepared)), tuple(path for path in missing if path not in of_batches)


def _unprepared_error(pipeline: str, table: str, batches: Sequence[int]) -> ContractError:
    return ContractError(
        "RESTORE_UNPREPARED",
        f"Files that batches {_abbreviate([str(batch) for batch in batches])} wrote to {pipeline}.{table} are missing.",
    )


def _reject_changed_columns(then: TableState, now: TableState) -> None:
    """Rejects a restore across a change of columns, because recovered rows need the present columns."""
    before, present = _column_types(then), _column_types(now)
    different = sorted(name for name, kind in before.items() if present.get(name) != kind)
    if then.metadata.get("partitionColumns") != now.metadata.get("partitionColumns"):
        different.append("the partition columns")
    if different:
        raise ContractError(
            "RESTORE_COLUMNS_DIFFER",
            f"Version {then.version} of {now.key} and the current table differ in columns: {', '.join(different)}.",
        )


def _column_types(state: TableState) -> dict[str, str]:
    fields = json.loads(state.metadata["schemaString"])["fields"]
    return {field["name"]: json.dumps(field["type"], sort_keys=True) for field in fields}


def _abbreviate(names: Sequence[str]) -> str:
    rest = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


#: A table's columns (declared types by name, or an Arrow schema) and its partition columns.
DeclaredTable = tuple[Mapping[str, str] | pa.Schema, tuple[str, ...]]


class PipelineRestorePlanner:
    """Plans start overs and rollbacks of one pipeline. Not thread-safe."""

    def __init__(self, spec: PipelineSpec, lake: Lake, home: PipelineHome) -> None:
        self._spec = spec
        self._pipeline = spec.pipeline
        self._lake = lake
        self._home = home
        #: Missing files of the version to restore, by table.
        self.missing_files: dict[str, tuple[str, ...]] = {}

    def plan_pipeline(self, restore_point: RestorePoint | None, *, reason: str) -> StartOver:
        """Plans a rollback to `restore_point`, or a start over without one. Stores the missing files in
        `missing_files`.

        Raises:
            ConfigError: RESTORE_POINT_INVALID for a version, which applies to one table only; BATCH_UNKNOWN.
            ContractError: RESTORE_UNSUPPORTED; RESTORE_GENERATION_ENDED, the batch was abandoned;
                LEDGER_WITHOUT_OFFSET; ROWS_UNKNOWN; and the errors of reading a log.
        """
        generation = self._home.generations.current()
        last = read_last_completed(self._lake, self._pipeline, generation)
        batch = None if restore_point is None else self._last_remaining_batch(restore_point, generation)
        tables = [] if batch is None else list(self._table_losses(batch))
        put_back = {table.table for table in tables}
        for name in declared_tables(self._spec):
            table = self._lake.open(paths.table(self._pipeline, name))
            if table is not None and name not in put_back:
                rows = table_rows(self._lake, paths.table(self._pipeline, name), table)
                tables.append(TableLoss(table=name, **{**asdict(table_content(table)), "rows": rows}))
        return StartOver(
            pipeline=self._pipeline,
            generation=generation + 1,
            first_batch=0 if last is None else last + 1,
            start=None if batch is None else dict(batch.end_offset or {}),
            to_batch=None if batch is None else batch.batch_id,
            spec_fingerprint=self._spec.fingerprint(),
            code_version=__version__,
            tables=tuple(tables),
            by=current_person(),
            reason=reason,
            run=current_run(),
            at=iso_now(),
        )

    def completed_at(self, batch: int) -> dt.datetime | None:
        """Returns when a batch was complete; None if the ledger does not say."""
        return BatchHistory(self._lake, self._home.objects, self._spec).detail(batch).summary.completed_at

    def _last_remaining_batch(self, point: RestorePoint, generation: int) -> BatchSummary:
        """Returns the last batch to keep; the next generation starts after it."""
        history = BatchHistory(self._lake, self._home.objects, self._spec)
        batch = history.detail(self._batch_id(point, history)).summary
        survives = self._home.start_overs.last_surviving_batch(batch.generation, current=generation)
        if survives is not None and batch.batch_id > survives:
            raise ContractError(
                "RESTORE_GENERATION_ENDED",
                f"Batch {batch.batch_id} of {self._pipeline!r} was abandoned; its generation ended with {survives}.",
                hint=f"`deltaworks batches {self._pipeline}` lists the batches that can be restored.",
            )
        if batch.end_offset is None:
            raise ContractError(
                "LEDGER_WITHOUT_OFFSET",
                f"The ledger of {self._pipeline!r} has no end offset for batch {batch.batch_id}.",
                hint="Restore another batch.",
            )
        return batch

    def _batch_id(self, point: RestorePoint, history: BatchHistory) -> int:
        if point.batch is not None:
            return point.batch
        if point.time is None:
            raise ConfigError(
                "RESTORE_POINT_INVALID",
                "A version applies to one table; a pipeline can be rolled back to a batch or a time.",
                hint="Give --to-batch or --to-time, or name the table.",
            )
        complete = [b.batch_id for b in history.completed() if b.completed_at and b.completed_at <= point.time]
        if not complete:
            raise ConfigError(
                "BATCH_UNKNOWN",
                f"No batch of {self._pipeline!r} was complete at {point.time.isoformat()}.",
                hint=f"`deltaworks batches {self._pipeline}` lists them; `deltaworks pipelines start-over` is for all.",
            )
        return complete[-1]

    def _table_losses(self, batch: BatchSummary) -> Iterator[TableLoss]:
        """Yields the loss of each bronze table and of quarantine, with the table's version at the completion of the
        batch.
        """
        for name in (*(table.name for table in self._spec.tables), QUARANTINE_TABLE):
            if self._lake.open(paths.table(self._pipeline, name)) is None:
                continue
            planner = TableRestorePlanner(self._spec, name, self._lake, self._home)
            then, now = planner.states_at_batch(batch.batch_id, batch.completed_at)
            removed = [added for file, added in now.files.items() if file not in then.files]
            target = with_columns_from(then, now)
            self.missing_files[name] = tuple(missing_files(self._lake, now, target))
            counts = StateDifference.between(now, target)
            yield TableLoss(
                table=name,
                version=now.version,
                rows=count_rows(self._lake, now.key, removed),
                files=counts.files_removed,
                bytes=counts.bytes_removed,
                restore_to=then.version,
            )


def declared_tables(spec: PipelineSpec) -> dict[str, DeclaredTable]:
    """Returns columns and partitioning of all bronze, quarantine, mutation state and live tables by name."""
    tables: dict[str, DeclaredTable] = {table.name: (table.column_types(), table.partition_by) for table in spec.tables}
    tables[QUARANTINE_TABLE] = (QUARANTINE_SCHEMA, QUARANTINE_PARTITION)
    if spec.mutations is not None:
        # Derived from the requests, which are read again.
        tables[spec.mutations.names] = (NAMES_COLUMNS, (ORG_COLUMN,))
        tables[spec.mutations.intervals] = (INTERVALS_COLUMNS, (ORG_COLUMN,))
    return tables | {
        live.name: (live.count_columns(spec.table(live.reads).column_types()), LIVE_PARTITION)
        for live in spec.aggregation_tables
    }


def restored_versions(lake: Lake, record: StartOver) -> dict[str, int]:
    """Returns the version of each restored table, by its commit metadata; recreated tables are omitted."""
    versions = {}
    for loss in record.tables:
        key = paths.table(record.pipeline, loss.table)
        table = lake.open(key)
        if loss.restore_to is None or table is None:
            continue
        step = (f"{record.pipeline}/start_over/{loss.table}", record.generation)
        for commit in commit_history(lake, key, newest=table.version(), limit=table.version() - loss.version):
            if (commit.metadata.get("step"), commit.metadata.get("step_version")) == step:
                versions[loss.table] = commit.version
    return versions
