"""Applies mutation requests in batches. The bounds of a batch are recorded first, so that a later run can complete it.

An exclusive lock allows one run per pipeline. If two run nevertheless, the transactions of their commits ensure that
each step commits once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.exclusive import ExclusiveLock, exclusive_lock
from deltaworks.control.locks.write_turn import Turn, TurnFactory, write_turn
from deltaworks.control.objects import open_objects
from deltaworks.control.provenance import current_run
from deltaworks.control.records.mutation import SUPERSEDED, MutationBatch, MutationCompletion
from deltaworks.errors import ConcurrencyError
from deltaworks.mutations.batch_steps import BatchSteps
from deltaworks.mutations.bounds import BatchPlanner, mutations_spec
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake

log = logging.getLogger(__name__)
LEASE_SECONDS = 30
#: Maximum number of batches per run. The next run continues.
MAX_BATCHES = 50
#: Interval, in batches, of removing the records of old batches.
CLEANUP_EVERY_BATCHES = 100


@dataclass(slots=True)
class MutationResult:
    """The batches that a run applied: `completed` were begun by an earlier run, `batches` by this one."""

    pipeline: str
    completed: list[MutationCompletion] = field(default_factory=list)
    batches: list[MutationCompletion] = field(default_factory=list)


class MutationRun:
    """Applies the requests of a pipeline. Idempotent, and safe concurrently with the stream and other writers.

    Args:
        acquire_turn: acquires the write turn of a table for its merge; by default the stream's write turn.
        fault: test hook, called at `fixed` and the points of `BatchSteps`.
    """

    def __init__(
        self,
        spark: SparkSession,
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
            "pipeline=%s mutation batch %d: %s rows=%d",
            batch.pipeline,
            batch.number,
            completion.outcome,
            completion.rows,
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
