"""Plans the restore of one table: the version, the lost batches, and the files of the table afterwards.

Used for a single table and for all tables of a pipeline. Writes nothing. An interrupted rollback is planned again from
its record, against the current table.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from deltaworks import __version__
from deltaworks.control.clock import iso_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.provenance import current_person, current_run
from deltaworks.control.records.generations import LostCommit, Rollback, RowSource
from deltaworks.engine.batch_history import BatchHistory
from deltaworks.errors import ConfigError, ContractError
from deltaworks.recovery.restore.lost_commits import LostCommits, LostTablePart, add_actions
from deltaworks.recovery.restore.restore_points import (
    RestorePoint,
    ambiguous_point_error,
    undone_changes,
    version_at_batch,
    version_at_time,
)
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.file_workers import rows_unknown_error, with_row_counts
from deltaworks.tables.files_commit import StateDifference, TargetState, check_supported
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import Action, FileId, TableState, row_count, state_at, total_rows
from deltaworks.tables.protected_files import find_missing_files

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
