"""Starts a pipeline over in a new generation: recreates its tables and reads its source from the beginning, or restores
its tables to one batch and reads the source from there.

For declaration changes that cannot be applied to landed rows: another source, or another type or partitioning of a
column. A record fixes the plan before anything changes. Each step is idempotent, so the next run completes an
interrupted one; until then no other operation of the pipeline starts. Abandoned rows stay readable by time travel until
VACUUM. Batch numbers continue, so a `_batch_id` is unique across generations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from deltaworks.control import paths
from deltaworks.control.health.throughput import drop_throughput
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.exclusive import table_files_locks
from deltaworks.control.locks.lease import Lease
from deltaworks.control.provenance import user_metadata
from deltaworks.control.records.generations import StartOver, TableLoss
from deltaworks.control.records.prepared import PreparedBatch
from deltaworks.engine.ledger import Ledger, owner_step
from deltaworks.engine.recovery import open_batch_processor, stream_lease
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError
from deltaworks.events.reasons import QUARANTINE_TABLE
from deltaworks.privacy.erasure.reapply import ErasureReapplier, reapply_step
from deltaworks.recovery.quarantine.open_rows import recount_quarantine
from deltaworks.recovery.quarantine.replay_commit import (
    close_landed_rows,
    complete_prepared_replay,
    exclusive_reread,
    void_replays,
)
from deltaworks.recovery.restore.dependents import reject_running_downstream
from deltaworks.recovery.restore.plan import (
    DeclaredTable,
    PipelineRestorePlanner,
    declared_tables,
    restored_versions,
    with_columns_from,
)
from deltaworks.recovery.restore.restore_points import RestorePoint
from deltaworks.recovery.restore.rollback_strategy import RollbackStrategies, RollbackStrategy
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.commit import Step
from deltaworks.tables.files_commit import FilesCommit, commit_files
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import state_at
from deltaworks.tables.steps import read_last_completed
from deltaworks.tables.table_swap import recreate_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPERATION, ROLLBACK = "start_over", "restore"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOverResult:
    """The rows that were abandoned (in a dry run: would be), by table.

    - `resumed`: whether an interrupted start over was completed.
    - `recreated`: number of tables that this call recreated or restored.
    - `strategy`: in the dry run of a rollback, whether it is possible, and the alternative.
    """

    pipeline: str
    dry_run: bool
    generation: int
    first_batch: int
    resumed: bool
    tables: tuple[TableLoss, ...]
    recreated: int
    start: Mapping[str, Any] | None = None
    strategy: RollbackStrategy | None = None

    @property
    def rows(self) -> int:
        """Total number of rows of all tables."""
        return sum(table.rows for table in self.tables)


def start_over(
    catalog: Catalog,
    pipeline: str,
    *,
    dry_run: bool = True,
    max_rows: int | None = None,
    reason: str = "",
    restore_point: RestorePoint | None = None,
    spark: Callable[[], SparkSession] | None = None,
    lease: Lease | None = None,
    fault: Callable[[str], None] = lambda point: None,
) -> StartOverResult:
    """Recreates the bronze tables, quarantine and live tables of a pipeline for a new generation. Idempotent.

    The stream must be stopped; its next start reads the source from the beginning with the present pipeline.yaml. Gold
    tables are updated by their next build. Tables that are no longer declared stay unchanged.

    Args:
        max_rows: maximum number of rows to abandon; required unless in a dry run.
        reason: stored in the record.
        restore_point: restore bronze tables and quarantine to a batch instead of recreating them. Live tables restart
            from zero. Names and intervals are rebuilt by the next mutation batch, which applies all requests. Replayed
            rows can be replayed again.
        spark: returns a session, if a table or a prepared batch needs one.
        lease: the stream's lease, if the caller holds it; otherwise it is acquired.
        fault: test hook, called at `planned`, `recreated:<table>`, `replays`, `ledger`, `spec` and `begun`.

    Raises:
        ConfigError: START_OVER_UNBOUNDED, START_OVER_TOO_LARGE; RESTORE_POINT_INVALID, BATCH_UNKNOWN.
        ConcurrencyError: LEASE_HELD, START_OVER_TABLE_HELD, TABLE_FILES_HELD, COMMIT_CONTENDED, RESTORE_HAS_FOLLOWER.
        ContractError: START_OVER_UNREADABLE, ROLLBACK_UNFINISHED; RESTORE_UNSUPPORTED, ROLLBACK_LOSES_ROWS,
            RESTORE_GENERATION_ENDED.
        TransientError: SPARK_UNAVAILABLE.
    """
    operation = _StartOverRun(catalog, pipeline, restore_point, spark, fault, lease=lease)
    if dry_run:
        return operation.count_rows()
    with operation.leases():
        return operation.run(max_rows, reason)


class _StartOverRun:
    def __init__(
        self,
        catalog: Catalog,
        pipeline: str,
        back_to: RestorePoint | None,
        spark: Callable[[], SparkSession] | None,
        fault: Callable[[str], None],
        *,
        lease: Lease | None,
    ) -> None:
        self._restore_point = back_to
        self._catalog = catalog
        self._spec = catalog.pipeline(pipeline)
        self._pipeline = pipeline
        self._lake = Lake(catalog.environment.lake)
        self._home = PipelineHome.open(catalog.environment.lake, pipeline)
        self._objects = self._home.objects
        self._planner = PipelineRestorePlanner(self._spec, self._lake, self._home)
        self._specs = self._home.specs
        self._spark = spark
        self._fault = fault
        self._reapplier = ErasureReapplier(catalog, pipeline)
        self._holds_lease = lease is not None
        self._lease = lease or stream_lease(self._lake, self._home, self._spec)

    @contextmanager
    def leases(self) -> Iterator[None]:
        """Holds the leases that exclude the stream, replays and reprocesses."""
        wait_seconds = self._spec.stream.lease_ttl_seconds * 1.5
        with nullcontext() if self._holds_lease else self._lease.held(wait_seconds=wait_seconds):
            no_vacuum = table_files_locks(self._objects, self._pipeline, self._tables_to_restore(), work="The restore")
            with exclusive_reread(self._home, starting_over=True), no_vacuum:
                yield

    def _tables_to_restore(self) -> list[str]:
        """Returns the tables that are restored, not recreated; none for a start over from the beginning."""
        if (begun := self._unfinished()) is not None:
            return [loss.table for loss in begun.tables if loss.restore_to is not None]
        return [] if self._restore_point is None else [*(table.name for table in self._spec.tables), QUARANTINE_TABLE]

    def count_rows(self) -> StartOverResult:
        """Returns the expected result of `run`."""
        begun = self._unfinished()
        if begun is not None:
            return _result(begun, resumed=True, dry_run=True)
        plan = self._planner.plan_pipeline(self._restore_point, reason="")
        return replace(_result(plan, resumed=False, dry_run=True), strategy=self._strategy(plan))

    def run(self, max_rows: int | None, reason: str) -> StartOverResult:
        """Runs all steps, or the remaining ones."""
        begun = self._unfinished()
        resumed = begun is not None
        if begun is None:
            torn = self._prepared_batch()
            if torn is None and not self._home.held.read():
                # Rejected before anything is written, since completing a batch fences every table.
                self._plan(max_rows, reason)
            self._complete_prepared(torn)
            plan = self._plan(max_rows, reason)
            self._specs.save(self._spec)
            begun = self._home.start_overs.get_or_create(plan)
        self._fault("planned")
        recreated = self._run_steps(begun)
        return _result(begun, resumed=resumed, dry_run=False, recreated=recreated)

    def _plan(self, max_rows: int | None, reason: str) -> StartOver:
        """Plans the start over; rejects it if it loses rows, abandons too many, or a downstream stream runs."""
        plan = self._planner.plan_pipeline(self._restore_point, reason=reason)
        strategy = self._strategy(plan)
        if strategy is not None:
            strategy.require_restore(self._pipeline, plan.to_batch or 0)
            reject_running_downstream(self._catalog, self._home, tuple(loss.table for loss in plan.tables))
        _require_bound(plan, max_rows)
        return plan

    def _strategy(self, plan: StartOver) -> RollbackStrategy | None:
        """Returns the strategy of a rollback; None for a start over from the beginning."""
        if plan.to_batch is None:
            return None
        strategies = RollbackStrategies(self._catalog, self._spec, self._lake, self._home, self._spark)
        return strategies.choose(plan.to_batch, self._planner.missing_files)

    def _unfinished(self) -> StartOver | None:
        """Returns the interrupted start over, if any."""
        generation, ended = self._home.start_overs.newest()
        return None if ended else self._home.start_overs.read(generation)

    def _prepared_batch(self) -> PreparedBatch | None:
        """Returns the prepared batch that is not complete, if any."""
        generation = self._home.generations.current()
        last = read_last_completed(self._lake, self._pipeline, generation)
        return self._home.prepared.read(generation, 0 if last is None else last + 1)

    def _complete_prepared(self, torn: PreparedBatch | None) -> None:
        """Completes the prepared batch under the declaration it was prepared with; rejects tables with uncommitted
        rows.
        """
        before = self._specs.current() or self._spec
        staged = torn is not None and any(share.writer == "spark" for share in torn.tables)
        processor, ledger = open_batch_processor(
            self._spark() if staged and self._spark else None,
            self._catalog,
            before,
            self._objects,
            lease=self._lease,
            epoch=self._lease.epoch,
            # If the table is recreated, its rows are abandoned anyway.
            check_dropped_tables=self._restore_point is not None,
        )
        while processor.complete_prepared() is not None:
            pass
        held = ledger.uncommitted_batches()
        if held:
            raise ConcurrencyError(
                "START_OVER_TABLE_HELD",
                f"{', '.join(sorted(held))} of {self._pipeline!r} still lacks rows of batches that are complete.",
            )
        complete_prepared_replay(self._spec, self._lake, self._home)

    def _run_steps(self, begun: StartOver) -> int:
        """Runs the remaining steps. Returns the number of tables that this call recreated or restored."""
        spec = self._specs.read(begun.spec_fingerprint)
        if spec is None:
            raise ContractError(
                "START_OVER_UNREADABLE",
                f"{begun.pipeline!r} cannot start over: the recorded declaration {begun.spec_fingerprint} is missing.",
                hint=f"Restore specs/{begun.spec_fingerprint}.json in its control folder from the storage's versions.",
            )
        declared = declared_tables(spec)
        losses = {loss.table: loss for loss in begun.tables}
        # Quarantine first: a concurrent replay then selects nothing once it is voided.
        first = [QUARANTINE_TABLE] if QUARANTINE_TABLE in losses else []
        recreated = sum(self._recreate_or_restore(begun, losses[name], declared[name]) for name in first)
        void_replays(self._spec, self._lake, self._home, replay_id=f"generation {begun.generation}")
        self._fault("replays")
        others = [name for name in declared if name in losses and name != QUARANTINE_TABLE]
        recreated += sum(self._recreate_or_restore(begun, losses[name], declared[name]) for name in others)
        if begun.to_batch is not None:
            close_landed_rows(spec, self._lake, self._home, reason=f"restore to batch {begun.to_batch}")
        self._forget_quarantine_rates(begun)
        if begun.first_batch:
            ledger = Ledger(self._lake, begun.pipeline, begun.generation)
            ledger.start_after(begun.first_batch - 1, owner=self._owner)
        self._fault("ledger")
        self._specs.record_start(spec, owner_epoch=self._lease.epoch)
        self._fault("spec")
        self._home.generations.begin_generation(begun)
        self._fault("begun")
        self._home.start_overs.record_completion(begun, versions=restored_versions(self._lake, begun))
        return recreated

    def _forget_quarantine_rates(self, begun: StartOver) -> None:
        """Drops the recent totals of batches that are given up: health must not count their quarantined events."""
        control = self._home.control()
        since = None if begun.to_batch is None else self._planner.completed_at(begun.to_batch)
        drop_throughput(self._objects, control, since=since)
        recount_quarantine(self._catalog.environment.lake, self._pipeline)

    @property
    def _owner(self) -> Step:
        return owner_step(self._pipeline, self._lease.epoch)

    def _recreate_or_restore(self, begun: StartOver, loss: TableLoss, declared: DeclaredTable) -> bool:
        """Recreates or restores a table. Returns whether this call made the commit."""
        name = loss.table
        key = paths.table(begun.pipeline, name)
        table = self._lake.open(key)
        if table is None:
            return False
        # Revoke the write turn of a job that holds it.
        self._objects.delete(paths.turn_request(begun.pipeline, name))
        step = Step(f"{begun.pipeline}/start_over/{name}", begun.generation)
        metadata = user_metadata(
            pipeline=begun.pipeline,
            batch="none",
            operation=OPERATION if loss.restore_to is None else ROLLBACK,
            generation=begun.generation,
            step=step.app_id,
            step_version=step.version,
        )
        if loss.restore_to is None:
            newly_committed = recreate_table(
                table,
                *declared,
                step=step,
                owner=self._owner,
                user_metadata=metadata,
                spark=self._spark,
                uri=self._lake.storage.spark_uri(key),
            )
        else:
            newly_committed = self._restore_table(key, loss.restore_to, step, metadata)
        self._fault(f"recreated:{name}")
        return newly_committed

    def _restore_table(self, key: str, version: int, step: Step, metadata: str) -> bool:
        then = state_at(self._lake, self._objects, key, version)
        parameters: dict[str, str | None] = {"version": str(version), "timestamp": None}
        commit = FilesCommit(step=step, owner=self._owner, user_metadata=metadata, parameters=parameters)
        restored = commit_files(self._lake, self._objects, key, lambda now: with_columns_from(then, now), commit=commit)
        # Each table has its own step; the key ends with the table's name.
        name = key.rpartition("/")[2]
        self._reapplier.reapply(name, step=reapply_step(step), check=lambda: None)
        return restored.newly_committed


def _result(plan: StartOver, *, resumed: bool, dry_run: bool, recreated: int = 0) -> StartOverResult:
    return StartOverResult(
        pipeline=plan.pipeline,
        dry_run=dry_run,
        generation=plan.generation,
        first_batch=plan.first_batch,
        resumed=resumed,
        tables=plan.tables,
        recreated=recreated,
        start=plan.start,
    )


def _require_bound(plan: StartOver, max_rows: int | None) -> None:
    rows = sum(table.rows for table in plan.tables)
    if max_rows is None:
        raise ConfigError(
            "START_OVER_UNBOUNDED",
            f"Starting {plan.pipeline!r} over gives up {rows} rows, and no bound was given.",
            hint=f"Give the bound too: --max-rows {rows}.",
        )
    if rows > max_rows:
        raise ConfigError(
            "START_OVER_TOO_LARGE", f"Starting {plan.pipeline!r} over would abandon {rows} rows, more than {max_rows}."
        )
