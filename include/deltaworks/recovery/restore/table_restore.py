"""Restores a bronze table or quarantine to an earlier version, and keeps the rows that landed after that version.

A record fixes the plan before anything changes. One commit restores the rows of that version, adds the files of later
batches again and undoes every other change. The stream may keep running: it defers its commits to the table, as during
a write turn. After a crash the recorded plan is resumed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.exclusive import table_files_lock
from deltaworks.control.locks.write_turn import TurnFactory, write_turn
from deltaworks.control.provenance import current_run, user_metadata
from deltaworks.control.records.generations import LostCommit, Rollback, RowSource
from deltaworks.engine.ledger import Ledger
from deltaworks.errors import ConfigError, ContractError
from deltaworks.privacy.erasure.reapply import ErasureReapplier, reapply_step
from deltaworks.recovery.quarantine.replay_commit import close_landed_rows, complete_prepared_replay, exclusive_reread
from deltaworks.recovery.restore.dependents import DownstreamPipeline, downstream_pipelines, reject_mutable
from deltaworks.recovery.restore.lost_commits import add_actions, stage_lost_rows
from deltaworks.recovery.restore.plan import TableRestorePlan, TableRestorePlanner, TableRestoreRequest
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.files_commit import FilesCommit, FilesCommitOutcome, StateDifference, TargetState, commit_files
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import TableState
from deltaworks.tables.steps import rollback_step

OPERATION = "restore"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRestoreResult:
    """The result for one table (in a dry run: the expected result, with `version` None).

    `version` is the table's new version. `unprepared` lists lost batches whose files no longer exist. All other
    required files that are missing are in `missing_files`.
    """

    pipeline: str
    table: str
    dry_run: bool
    resumed: bool
    from_version: int
    to_version: int
    version: int | None
    repair: RowSource
    difference: StateDifference | None
    lost: tuple[LostCommit, ...]
    undone_changes: tuple[str, ...]
    unprepared: tuple[int, ...]
    missing_files: tuple[str, ...]
    downstream: tuple[DownstreamPipeline, ...]
    seconds: float


class TableRestore:
    """Restores one table. Call `count` or `run`. Not thread-safe.

    Args:
        get_turn: returns the turn of the table during the commit; the stream's write turn by default.
        fault: test hook, called at `planned`, `staged`, `restored`, `erased` and `recorded`.
    """

    def __init__(
        self,
        catalog: Catalog,
        pipeline: str,
        table: str,
        *,
        get_turn: TurnFactory | None = None,
        fault: Callable[[str], None] = lambda point: None,
    ) -> None:
        self._catalog = catalog
        self._spec = catalog.pipeline(pipeline)
        self._pipeline = pipeline
        self._table = table
        self._key = paths.table(pipeline, table)
        self._lake = Lake(catalog.environment.lake)
        self._home = PipelineHome.open(catalog.environment.lake, pipeline)
        self._objects = self._home.objects
        self._get_turn = get_turn or (lambda name: write_turn(self._objects, pipeline, name, by=current_run()))
        self._fault = fault
        self._planner = TableRestorePlanner(self._spec, table, self._lake, self._home)
        reject_mutable(self._spec, table)

    @property
    def has_unfinished(self) -> bool:
        """Whether a rollback of this table was interrupted."""
        record = self._home.rollbacks.unfinished()
        return record is not None and record.table == self._table

    def count(self, request: TableRestoreRequest) -> TableRestoreResult:
        """Returns the expected result of `run`. Reads only.

        Raises:
            ConfigError: RESTORE_POINT_INVALID, TABLE_UNKNOWN.
            ContractError: RESTORE_MUTABLE, RESTORE_UNSUPPORTED, RESTORE_GENERATION_ENDED, RESTORE_COLUMNS_DIFFER,
                BATCH_UNKNOWN, and those of reading the log.
        """
        started = time.monotonic()
        plan = self._planner.plan_table(request)
        return self._result(plan, None, dry_run=True, resumed=False, seconds=time.monotonic() - started)

    def run(self, request: TableRestoreRequest | None = None, *, allow_missing: bool = False) -> TableRestoreResult:
        """Restores the table, or completes an interrupted restore. Idempotent.

        Args:
            request: required unless a rollback of the table was interrupted, in which case it is ignored.
            allow_missing: skip rows of missing objects when rows are read again.

        Raises:
            ConfigError: RESTORE_UNBOUNDED, RESTORE_TOO_LARGE, and those of `count`.
            ContractError: RESTORE_FILES_MISSING, RESTORE_UNPREPARED, ROLLBACK_UNFINISHED of another table;
                RELAND_NEEDS_SPARK, RELAND_OBJECTS_MISSING.
            ConcurrencyError: LEASE_HELD, TABLE_FILES_HELD, TURN_NOT_GRANTED, TURN_LOST, COMMIT_CONTENDED.
        """
        started = time.monotonic()
        with exclusive_reread(self._home, rolling_back=True):
            complete_prepared_replay(self._spec, self._lake, self._home)
            begun = self._unfinished_rollback()
            # Exclude VACUUM, which could delete restored files. The lock is taken before the turn, so that the stream
            # does not wait for a VACUUM.
            exclusive = table_files_lock(self._objects, self._pipeline, self._table, work="The restore")
            with exclusive as files_lock, self._get_turn(self._table) as turn:
                plan = self._record_plan(request) if begun is None else self._planner.replan(begun)
                self._fault("planned")
                plan = self._with_reread_rows(plan, allow_missing)
                self._fault("staged")
                files_lock.check()
                restored = self._commit(plan, turn.check)
                self._fault("restored")
                self._reapply_erasures(plan.record, turn.check)
            self._fault("erased")
            Ledger(self._lake, self._pipeline, plan.record.generation).roll_back(plan.record, version=restored.version)
            self._fault("recorded")
            reason = f"restore {plan.record.ordinal} of {self._table}"
            close_landed_rows(self._spec, self._lake, self._home, reason=reason)
            self._home.rollbacks.record_completion(plan.record, version=restored.version)
        seconds = time.monotonic() - started
        return self._result(plan, restored, dry_run=False, resumed=begun is not None, seconds=seconds)

    def _unfinished_rollback(self) -> Rollback | None:
        """Returns this table's interrupted rollback, if any."""
        unfinished = self._home.rollbacks.unfinished()
        if unfinished is not None and unfinished.table != self._table:
            raise ContractError(
                "ROLLBACK_UNFINISHED",
                f"A rollback of {self._pipeline}.{unfinished.table} was interrupted.",
                hint=f"`deltaworks restore {self._pipeline} {unfinished.table} --no-dry-run` completes it first.",
            )
        return unfinished

    def _record_plan(self, request: TableRestoreRequest | None) -> TableRestorePlan:
        if request is None:
            raise ConfigError(
                "RESTORE_POINT_INVALID",
                f"No rollback of {self._pipeline}.{self._table} was started, and no restore point was given.",
            )
        plan = self._planner.plan_table(request)
        plan.check(request.max_rows)
        fixed = self._home.rollbacks.get_or_create(plan.record)
        return plan if fixed == plan.record else self._planner.replan(fixed)

    def _with_reread_rows(self, plan: TableRestorePlan, allow_missing: bool) -> TableRestorePlan:
        if plan.record.row_source != "source":
            return plan
        staged = stage_lost_rows(
            self._catalog, self._lake, self._home, plan.record, plan.target, allow_missing=allow_missing
        )
        files = plan.target.files | add_actions(staged.files)
        return replace(plan, target=TargetState(files, plan.target.metadata))

    def _commit(self, plan: TableRestorePlan, check: Callable[[], None]) -> FilesCommitOutcome:
        record = plan.record
        step = rollback_step(self._pipeline, self._table, record.ordinal)
        metadata = user_metadata(
            pipeline=self._pipeline,
            batch="none",
            operation=OPERATION,
            generation=record.generation,
            step=step.app_id,
            step_version=step.version,
            from_version=record.from_version,
            to_version=record.to_version,
            repair=record.row_source,
        )
        commit = FilesCommit(
            step=step, user_metadata=metadata, parameters={"version": str(record.to_version), "timestamp": None}
        )

        def target(current: TableState) -> TargetState:
            if current.version == plan.current.version:
                return plan.target
            # The table was compacted after this version; the restore adds the removed files again.
            again = self._planner.replan(record)
            return TargetState(again.target.files, plan.target.metadata)

        return commit_files(self._lake, self._objects, self._key, target, commit=commit, before_commit=check)

    def _reapply_erasures(self, record: Rollback, check: Callable[[], None]) -> None:
        """Deletes the restored rows of people who were erased after that version."""
        if record.reapply_erasures:
            step = reapply_step(rollback_step(self._pipeline, self._table, record.ordinal))
            ErasureReapplier(self._catalog, self._pipeline).reapply(self._table, step=step, check=check)

    def _result(
        self,
        plan: TableRestorePlan,
        restored: FilesCommitOutcome | None,
        *,
        dry_run: bool,
        resumed: bool,
        seconds: float,
    ) -> TableRestoreResult:
        record = plan.record
        return TableRestoreResult(
            pipeline=self._pipeline,
            table=self._table,
            dry_run=dry_run,
            resumed=resumed,
            from_version=record.from_version,
            to_version=record.to_version,
            version=None if restored is None else restored.version,
            repair=record.row_source,
            difference=plan.difference if restored is None else restored.difference,
            lost=record.lost,
            undone_changes=record.undone_changes,
            unprepared=plan.unprepared,
            missing_files=plan.missing_files,
            downstream=downstream_pipelines(self._catalog, self._pipeline, self._table, record.row_source),
            seconds=seconds,
        )
