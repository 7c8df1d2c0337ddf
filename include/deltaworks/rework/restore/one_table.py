"""Puts one bronze table, or quarantine, back to an earlier version, and what landed since back with it.

A record fixes what is done before anything changes; one commit does it: what the version had is there again, what
batches have brought since comes back with the files they had written, and everything else since is undone. The stream
may go on: it holds the table meanwhile, as for a write turn. Whoever goes on after a crash does what is on record.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.exclusive import table_files_lock
from deltaworks.control.locks.turn import TurnOf, write_turn
from deltaworks.control.provenance import current_run, user_metadata
from deltaworks.control.records.rollback import LostShare, Repair, Rollback
from deltaworks.engine.ledger import Ledger
from deltaworks.errors import ConfigError, ContractError
from deltaworks.rework.quarantine.replay import complete_torn_replay, rereading
from deltaworks.rework.restore.followers import Follower, followers_of
from deltaworks.rework.restore.lost import added_files
from deltaworks.rework.restore.refusals import refuse_absent, refuse_mutable, refuse_unbounded, refuse_unprepared
from deltaworks.rework.restore.source_repair import stage_lost
from deltaworks.rework.restore.table_plan import Planned, TablePlanner, TableRestoreRequest
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import TableState
from deltaworks.tables.restore import Difference, RestoreCommit, RestoreOutcome, Target, commit_restore
from deltaworks.tables.steps import rollback_step

OPERATION = "restore"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRestoreResult:
    """What was done to one table, or would be. `version` is the table's after it, None in a dry run.

    `unprepared` are lost batches whose files are on record no more; `absent` are files the way back needs and that are
    gone.
    """

    pipeline: str
    table: str
    dry_run: bool
    resumed: bool
    from_version: int
    to_version: int
    version: int | None
    repair: Repair
    difference: Difference | None
    lost: tuple[LostShare, ...]
    undone: tuple[str, ...]
    unprepared: tuple[int, ...]
    absent: tuple[str, ...]
    followers: tuple[Follower, ...]
    seconds: float


class TableRestore:
    """Restores of one table. Build it, call `count` or `run`; used by one thread.

    Args:
        turn_of: gives the turn of the table for the time of the commit; by default the stream's write turn.
        fault: called at `planned`, `staged`, `restored` and `recorded`, by tests.
    """

    def __init__(
        self,
        catalog: Catalog,
        pipeline: str,
        table: str,
        *,
        turn_of: TurnOf | None = None,
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
        self._turn_of = turn_of or (lambda name: write_turn(self._objects, pipeline, name, by=current_run()))
        self._fault = fault
        self._planner = TablePlanner(catalog, pipeline, table)
        refuse_mutable(self._spec, table)

    @property
    def unfinished(self) -> bool:
        """Whether a rollback of this table was broken off."""
        found = self._home.rollbacks.unfinished()
        return found is not None and found.table == self._table

    def count(self, request: TableRestoreRequest) -> TableRestoreResult:
        """What `run` would do. Reads only.

        Raises:
            ConfigError: RESTORE_POINT, TABLE_UNKNOWN.
            ContractError: RESTORE_MUTABLE, RESTORE_UNSUPPORTED, RESTORE_GENERATION_OVER, RESTORE_COLUMNS_DIFFER,
                BATCH_UNKNOWN, and what reading the log raises.
        """
        started = time.monotonic()
        planned = self._planner.plan(request)
        return self._result(planned, None, dry_run=True, resumed=False, seconds=time.monotonic() - started)

    def run(self, request: TableRestoreRequest | None = None, *, allow_missing: bool = False) -> TableRestoreResult:
        """All of it, or what is left of one that was broken off. Idempotent.

        Args:
            request: ignored where a rollback of the table has been begun, needed where none has.
            allow_missing: leave out the rows of objects that are gone, where rows are read again.

        Raises:
            ConfigError: RESTORE_UNBOUNDED, RESTORE_TOO_LARGE, and what `count` raises.
            ContractError: RESTORE_FILES_GONE, RESTORE_UNPREPARED, ROLLBACK_UNFINISHED of another table;
                RELAND_NEEDS_SPARK, RELAND_OBJECTS_GONE.
            ConcurrencyError: LEASE_HELD, TABLE_FILES_HELD, TURN_NOT_GRANTED, TURN_LOST, COMMIT_CONTENDED.
        """
        started = time.monotonic()
        with rereading(self._catalog, self._pipeline, rolling_back=True):
            complete_torn_replay(self._catalog, self._pipeline)
            begun = self._begun()
            # What VACUUM is deleting must not come back, and what comes back must not be deleted. Before the turn:
            # the stream need not wait for a VACUUM.
            exclusive = table_files_lock(self._objects, self._pipeline, self._table, work="The restore")
            with exclusive as files_lock, self._turn_of(self._table) as turn:
                planned = self._fixed(request) if begun is None else self._planner.again(begun)
                self._fault("planned")
                planned = self._with_rows_read_again(planned, allow_missing)
                self._fault("staged")
                files_lock.check()
                restored = self._commit(planned, turn.check)
            self._fault("restored")
            Ledger(self._lake, self._pipeline, planned.record.generation).roll_back(
                planned.record, version=restored.version
            )
            self._fault("recorded")
            self._home.rollbacks.fix_end(planned.record, version=restored.version)
        seconds = time.monotonic() - started
        return self._result(planned, restored, dry_run=False, resumed=begun is not None, seconds=seconds)

    def _with_rows_read_again(self, planned: Planned, allow_missing: bool) -> Planned:
        record = planned.record
        if record.repair != "source":
            return planned
        staged = stage_lost(self._catalog, record, planned.target, allow_missing=allow_missing)
        files = planned.target.files | added_files(staged.files)
        return replace(planned, target=Target(files, planned.target.metadata))

    def _begun(self) -> Rollback | None:
        """The rollback of this table that was broken off."""
        unfinished = self._home.rollbacks.unfinished()
        if unfinished is not None and unfinished.table != self._table:
            raise ContractError(
                "ROLLBACK_UNFINISHED",
                f"A rollback of {self._pipeline}.{unfinished.table} was broken off.",
                hint=f"`deltaworks restore {self._pipeline} {unfinished.table} --no-dry-run` goes on with it first.",
            )
        return unfinished

    def _fixed(self, request: TableRestoreRequest | None) -> Planned:
        if request is None:
            raise ConfigError(
                "RESTORE_POINT",
                f"No rollback of {self._pipeline}.{self._table} was begun, and it was not said what to go back to.",
                hint="Give --to-version, --to-time or --to-batch.",
            )
        planned = self._planner.plan(request)
        refuse_absent(self._key, planned.absent)
        refuse_unprepared(self._pipeline, self._table, planned.unprepared, repair=planned.record.repair)
        refuse_unbounded(f"{self._pipeline}.{self._table}", planned.difference.rows_out, request.max_rows)
        fixed = self._home.rollbacks.fix(planned.record)
        return planned if fixed == planned.record else self._planner.again(fixed)

    def _commit(self, planned: Planned, check: Callable[[], None]) -> RestoreOutcome:
        record = planned.record
        step = rollback_step(self._pipeline, self._table, record.ordinal)
        made = user_metadata(
            pipeline=self._pipeline,
            batch="none",
            operation=OPERATION,
            generation=record.generation,
            step=step.app_id,
            step_version=step.version,
            from_version=record.from_version,
            to_version=record.to_version,
            repair=record.repair,
        )
        commit = RestoreCommit(
            step=step, user_metadata=made, parameters={"version": str(record.to_version), "timestamp": None}
        )

        def target(current: TableState) -> Target:
            if current.version == planned.now.version:
                return planned.target
            # Somebody rearranged rows since; a file that was taken out by that is put in again.
            again = self._planner.again(record)
            return Target(again.target.files, planned.target.metadata)

        return commit_restore(self._lake, self._objects, self._key, target, commit=commit, before_commit=check)

    def _result(
        self, planned: Planned, restored: RestoreOutcome | None, *, dry_run: bool, resumed: bool, seconds: float
    ) -> TableRestoreResult:
        record = planned.record
        done = planned.difference if restored is None else restored.difference
        return TableRestoreResult(
            pipeline=self._pipeline,
            table=self._table,
            dry_run=dry_run,
            resumed=resumed,
            from_version=record.from_version,
            to_version=record.to_version,
            version=None if restored is None else restored.version,
            repair=record.repair,
            difference=done,
            lost=record.lost,
            undone=record.undone,
            unprepared=planned.unprepared,
            absent=planned.absent,
            followers=followers_of(self._catalog, self._pipeline, self._table, record.repair),
            seconds=seconds,
        )
