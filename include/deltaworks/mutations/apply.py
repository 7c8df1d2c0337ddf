"""Applies mutation requests in batches. The bounds of a batch are recorded first, so that a later run can complete it.

An exclusive lock allows one run per pipeline. If two run nevertheless, the transactions of their commits ensure that
each step commits once. Rows that were deleted so long ago that no late request can restore them are purged for good.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta

from delta.tables import DeltaTable
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from deltaworks.control import paths
from deltaworks.control.clock import iso_now, utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.exclusive import ExclusiveLock, exclusive_lock
from deltaworks.control.locks.write_turn import Turn, TurnFactory, write_turn
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.provenance import PURGE_DELETED, current_run, user_metadata
from deltaworks.control.records.mutation import SUPERSEDED, MutationBatch, MutationCompletion
from deltaworks.errors import ConcurrencyError
from deltaworks.maintenance.deletion_limits import DeletionLimit, alert_limit_exceeded, resolve_limit_exceeded
from deltaworks.maintenance.optimize import SessionFactory
from deltaworks.mutations.batch_steps import BatchSteps
from deltaworks.mutations.bounds import BatchPlanner, mutable_tables, mutations_spec
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.mutation import DELETED_COLUMN, MUTATION_COLUMN, ORG_COLUMN, MutationsSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.file_workers import table_rows
from deltaworks.tables.lake import Lake
from deltaworks.tables.rewrite import SparkRequiredError
from deltaworks.tables.spark_session import USER_METADATA, override_settings, retry_conflicts

log = logging.getLogger(__name__)
LEASE_SECONDS = 30
#: Maximum number of batches per run. The next run continues.
MAX_BATCHES = 50
#: Interval, in batches, of removing the records of old batches.
CLEANUP_EVERY_BATCHES = 100


@dataclass(slots=True)
class MutationResult:
    """The batches that a run applied: `completed` were begun by an earlier run, `batches` by this one.

    The run ended before a batch that needs Spark, which it does not have, if `spark_reason` is not empty.
    """

    pipeline: str
    completed: list[MutationCompletion] = field(default_factory=list)
    batches: list[MutationCompletion] = field(default_factory=list)
    spark_reason: str = ""


class MutationRun:
    """Applies the requests of a pipeline. Idempotent, and safe concurrently with the stream and other writers.

    Args:
        spark: opens the Spark session for the first batch that needs it; None leaves such a batch to another run.
        acquire_turn: acquires the write turn of a table for its merge; by default the stream's write turn.
        fault: test hook, called at `fixed` and the points of `BatchSteps`.
    """

    def __init__(
        self,
        spark: SessionFactory | None,
        catalog: Catalog,
        pipeline: str,
        *,
        acquire_turn: TurnFactory | None = None,
        fault: Callable[[str], None] = lambda point: None,
        lease_wait_seconds: float = 2 * LEASE_SECONDS,
    ) -> None:
        self._spark = spark
        self._spec = catalog.pipeline(pipeline)
        self._mutations_spec = mutations_spec(self._spec)
        self._lake = Lake(catalog.environment.lake)
        self._objects = open_objects(catalog.environment.lake)
        self._home = PipelineHome(self._objects, pipeline)
        self._batches = self._home.mutations
        self._planner = BatchPlanner(self._lake, self._objects, self._spec)
        self._acquire_turn = acquire_turn or self._write_turn
        self._fault = fault
        self._lease_wait_seconds = lease_wait_seconds

    def run(
        self, *, organisation: str | None = None, everything: bool = False, max_batches: int = MAX_BATCHES
    ) -> MutationResult:
        """Completes an unfinished batch, then applies all requests that arrived before the run began.

        Later requests are left to the next run, because with a running stream this run would never end.

        Args:
            organisation: apply only the requests of this organisation, before all others.
            everything: compare all rows with all requests, and abandon a batch that cannot be completed.
            max_batches: leave the remaining requests to a later run.

        Raises:
            ConfigError: MUTATIONS_UNDECLARED.
            ContractError: MUTATION_BATCH_UNREADABLE, MUTATION_BOUNDS_UNAVAILABLE, START_OVER_UNFINISHED.
            ConcurrencyError: LEASE_HELD by another run; MUTATION_LEASE_LOST, TURN_NOT_GRANTED, TURN_LOST or
                DELTA_CONFLICT, after which the next run completes the batch.
        """
        result = MutationResult(self._spec.pipeline)
        with self._exclusive_lock() as lock:
            self._home.start_overs.reject_unfinished()
            max_versions = self._planner.current_versions()
            try:
                unfinished = self._unfinished_batch()
                if unfinished is not None:
                    result.completed.append(self._complete(unfinished, check=lock.check, abandon=everything))
                while len(result.batches) < max_batches:
                    batch = self._plan_next(max_versions, organisation=organisation, everything=everything)
                    if batch is None:
                        break
                    result.batches.append(self._complete(batch, check=lock.check))
                    if organisation is not None or everything:
                        break
            except SparkRequiredError as error:
                # The batch is recorded, so the run with Spark completes it within the same bounds.
                result.spark_reason = str(error)
            if any(end.number % CLEANUP_EVERY_BATCHES == 0 for end in result.batches):
                self._batches.delete_old_records()
        return result

    def _unfinished_batch(self) -> MutationBatch | None:
        fixed, ended = self._batches.numbers()
        return self._batches.batch(fixed) if fixed > ended else None

    def _plan_next(
        self, max_versions: Mapping[str, int], *, organisation: str | None, everything: bool
    ) -> MutationBatch | None:
        _, ended = self._batches.numbers()
        planned = self._planner.plan_batch(
            ended + 1, organisation=organisation, everything=everything, max_versions=max_versions
        )
        if planned is None:
            return None
        fixed = self._batches.get_or_create(planned)
        self._fault("fixed")
        return fixed

    def _complete(
        self, batch: MutationBatch, *, check: Callable[[], None], abandon: bool = False
    ) -> MutationCompletion:
        if abandon or batch.generation != self._home.generations.current():
            # The next batch starts from version 0 and includes the requests of this batch.
            completion = MutationCompletion(
                pipeline=batch.pipeline,
                number=batch.number,
                generation=batch.generation,
                outcome=SUPERSEDED,
                at=iso_now(),
            )
        else:
            steps = BatchSteps(
                self._spark,
                self._lake,
                self._spec,
                batch,
                acquire_turn=self._acquire_turn,
                check=check,
                fault=self._fault,
            )
            completion = steps.apply()
        self._batches.complete(completion)
        self._fault("ended")
        log.warning(
            "pipeline=%s mutation batch %d: %s rows=%d engine=%s",
            batch.pipeline,
            batch.number,
            completion.outcome,
            completion.rows,
            completion.engine,
        )
        return completion

    def _write_turn(self, table: str) -> AbstractContextManager[Turn]:
        return write_turn(
            self._objects,
            self._spec.pipeline,
            table,
            by=current_run(),
            max_turn_seconds=self._mutations_spec.max_turn_seconds,
        )

    def _exclusive_lock(self) -> AbstractContextManager[ExclusiveLock]:
        """Acquires the lock of the pipeline's mutations; its `check` raises MUTATION_LEASE_LOST."""
        pipeline = self._spec.pipeline

        def lost_error() -> ConcurrencyError:
            return ConcurrencyError(
                "MUTATION_LEASE_LOST",
                f"Another run applies the requests of {pipeline!r}, or the storage did not answer for a while.",
            )

        return exclusive_lock(
            self._objects,
            paths.lease(paths.mutations(pipeline)),
            name=pipeline,
            wait_seconds=self._lease_wait_seconds,
            lost_error=lost_error,
            ttl_seconds=LEASE_SECONDS,
        )


#: Maximum number of organisations purged per run; the next run continues.
MAX_ORGANISATIONS = 1_000


@dataclass(frozen=True, slots=True)
class PurgeResult:
    """Rows purged from one table (in a dry run: rows to purge), and the number of their organisations."""

    table: str
    dry_run: bool
    rows: int
    organisations: int
    seconds: float
    reason: str = ""


def purge_deleted(
    spark: SparkSession,
    catalog: Catalog,
    pipeline: str,
    *,
    dry_run: bool = True,
    max_organisations: int = MAX_ORGANISATIONS,
    deletion_limit: DeletionLimit | None = None,
) -> list[PurgeResult]:
    """Removes rows of a pipeline's mutable tables that were deleted at least `purge_after_days` ago.

    Idempotent; acquires each table's write turn. The time of a deletion is the end of its batch.

    Args:
        deletion_limit: skip a table that would lose a larger share of its rows, and raise an alert.

    Raises:
        ConfigError: MUTATIONS_UNDECLARED.
        ConcurrencyError: TURN_NOT_GRANTED, TURN_LOST, DELTA_CONFLICT.
    """
    spec = catalog.pipeline(pipeline)
    mutations = mutations_spec(spec)
    lake, objects = Lake(catalog.environment.lake), open_objects(catalog.environment.lake)
    ended_before = (utc_now() - timedelta(days=mutations.purge_after_days)).isoformat(timespec="milliseconds")
    last_batch = PipelineHome(objects, pipeline).mutations.newest_ended_before(ended_before)
    purge = _Purge(
        spark.newSession(),
        lake,
        objects,
        spec,
        mutations,
        last_batch=last_batch,
        max_organisations=max_organisations,
        deletion_limit=deletion_limit,
    )
    return [purge.purge_table(table.name, dry_run=dry_run) for table in mutable_tables(spec)]


class _Purge:
    """Purges rows deleted in batches up to `last_batch`."""

    def __init__(
        self,
        session: SparkSession,
        lake: Lake,
        objects: ObjectStore,
        spec: PipelineSpec,
        mutations: MutationsSpec,
        *,
        last_batch: int,
        max_organisations: int,
        deletion_limit: DeletionLimit | None,
    ) -> None:
        self._session = session
        self._lake = lake
        self._objects = objects
        self._spec = spec
        self._mutations_spec = mutations
        self._last_batch = last_batch
        self._max_organisations = max_organisations
        self._deletion_limit = deletion_limit

    def purge_table(self, name: str, *, dry_run: bool) -> PurgeResult:
        started = time.monotonic()
        key = paths.table(self._spec.pipeline, name)
        opened = self._lake.open(key)
        if opened is None:
            return PurgeResult(name, dry_run, 0, 0, 0.0, "it does not exist yet")
        if self._last_batch == 0:
            reason = f"no mutation batch ended more than {self._mutations_spec.purge_after_days} days ago"
            return PurgeResult(name, dry_run, 0, 0, 0.0, reason)
        uri = self._lake.storage.spark_uri(key)
        rows = self._session.read.format("delta").load(uri).where(self._purgeable_rows())
        counted = rows.groupBy(ORG_COLUMN).count().orderBy(ORG_COLUMN).limit(self._max_organisations).collect()
        rows_by_org = {row[ORG_COLUMN]: int(row["count"]) for row in counted}
        purged = sum(rows_by_org.values())
        if not dry_run and (
            skip_reason := self._limit_exceeded_reason(name, purged, table_rows(self._lake, key, opened))
        ):
            return PurgeResult(name, dry_run, 0, 0, time.monotonic() - started, skip_reason)
        if rows_by_org and not dry_run:
            self._delete(name, uri, F.col(ORG_COLUMN).isin(*rows_by_org) & self._purgeable_rows())
        return PurgeResult(name, dry_run, purged, len(rows_by_org), time.monotonic() - started)

    def _limit_exceeded_reason(self, name: str, rows: int, total: int) -> str:
        """Returns the reason to skip the table because of the deletion limit; empty if it may be purged."""
        if self._deletion_limit is None:
            return ""
        home = PipelineHome(self._objects, self._spec.pipeline)
        if rows <= self._deletion_limit.max_rows(total):
            resolve_limit_exceeded(home, name)
            return ""
        summary = f"{rows:,} of {total:,} rows were deleted long enough ago to be purged, more than a night removes."
        alert_limit_exceeded(
            home, name, summary=summary, command=f"`deltaworks mutations purge {self._spec.pipeline} --no-dry-run`"
        )
        return f"skipped: {summary}"

    def _purgeable_rows(self) -> Column:
        return (F.col(MUTATION_COLUMN) <= self._last_batch) & F.col(DELETED_COLUMN)

    def _delete(self, name: str, uri: str, condition: Column) -> None:
        metadata = user_metadata(pipeline=self._spec.pipeline, batch=self._last_batch, operation=PURGE_DELETED)
        limit = self._mutations_spec.max_turn_seconds
        with write_turn(self._objects, self._spec.pipeline, name, by=current_run(), max_turn_seconds=limit) as turn:
            for attempt in retry_conflicts(name):
                with attempt, override_settings(self._session, {USER_METADATA: metadata}):
                    turn.check()
                    DeltaTable.forPath(self._session, uri).delete(condition)
