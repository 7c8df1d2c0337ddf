"""Runs the steps of one mutation batch in order: data tables, notifications, names, intervals, the check of sizes.

The batch is compared with the stored intervals, so the intervals are written last. Until then, a run that resumes after
a crash computes the same changes. Each step is one commit, made once, and is skipped if nothing differs.

A batch of few requests is resolved in this process (`local_batch`), any other one by Spark (`spark_batch`). Both
compute the same changes under the same steps, so one completes what the other began.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.locks.write_turn import Turn, TurnFactory
from deltaworks.control.objects import open_objects
from deltaworks.control.records.mutation import APPLIED, MutationBatch, MutationCompletion, TableMutation
from deltaworks.maintenance.layout import Layout
from deltaworks.maintenance.optimize import SessionFactory, optimize_table
from deltaworks.mutations.batch_engine import BatchEngine, MergeFunction
from deltaworks.mutations.bounds import mutable_tables, mutations_spec
from deltaworks.mutations.commits import StepCommits, engine_of, merge_metric
from deltaworks.mutations.entity_sizes import check_entity_sizes
from deltaworks.mutations.local_batch import LocalBatch, reasons_for_spark
from deltaworks.mutations.spark_batch import SparkBatch
from deltaworks.mutations.state_tables import RENAME_NAME, ensure_state_tables, state_table_layouts
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import TableSpec
from deltaworks.tables.lake import Lake
from deltaworks.tables.rewrite import SparkRequiredError

log = logging.getLogger(__name__)


class BatchSteps:
    """Applies one batch. Call `apply` once.

    Args:
        spark: opens the Spark session at its first call; None if this process has none.
        acquire_turn: acquires the write turn of a table.
        check: called before each commit; its errors end the batch.
        fault: test hook, called at `resolved`, `merged:<table>`, `optimized:<table>`, `named`, `notified:<table>`,
            `stored` and `ended`.
    """

    def __init__(
        self,
        spark: SessionFactory | None,
        lake: Lake,
        spec: PipelineSpec,
        batch: MutationBatch,
        *,
        acquire_turn: TurnFactory,
        check: Callable[[], None],
        fault: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._spec = spec
        self._batch = batch
        self._mutations_spec = mutations_spec(spec)
        self._acquire_turn = acquire_turn
        self._check = check
        self._fault = fault
        self._seconds: dict[str, float] = {}

    def apply(self) -> MutationCompletion:
        """Runs the remaining steps of the batch. Idempotent. Returns the result, which the caller records.

        Raises:
            SparkRequiredError: only Spark can apply it, and this process has none. Steps may have been committed.
        """
        ensure_state_tables(self._lake, self._spec, self._mutations_spec)
        reasons = reasons_for_spark(self._lake, self._spec, self._batch)
        if not reasons:
            try:
                return self._apply(self._local_engine)
            except SparkRequiredError as error:
                reasons = [str(error)]
        if self._spark is None:
            raise SparkRequiredError("; ".join(reasons))
        log.warning(
            "pipeline=%s mutation batch %d is applied by Spark: %s",
            self._spec.pipeline,
            self._batch.number,
            "; ".join(reasons),
        )
        return self._apply(self._spark_engine)

    def _local_engine(self) -> BatchEngine:
        commits = StepCommits(self._lake, self._spec.pipeline, self._batch.number, before_commit=self._check)
        return LocalBatch(self._lake, self._spec, self._batch, commits)

    def _spark_engine(self) -> BatchEngine:
        assert self._spark is not None
        # Commit settings belong to a session, so the batch needs its own.
        session = self._spark().newSession()
        return SparkBatch(session, self._lake, self._spec, self._batch, before_commit=self._check)

    def _apply(self, make_engine: Callable[[], BatchEngine]) -> MutationCompletion:
        with self._phase("resolve"):
            engine = make_engine()
            counts = engine.request_counts()
        self._fault("resolved")
        invalid_values, tables = 0, []
        for table in self._existing_tables():
            result, invalid = self._mutate_table(engine, table)
            invalid_values += invalid
            tables.append(result)
        with self._phase("names"):
            engine.update_names(has_new_names=bool(counts.get(RENAME_NAME)))
        self._fault("named")
        with self._phase("intervals"):
            engine.update_intervals()
        self._fault("stored")
        with self._phase("sizes"):
            check_entity_sizes(open_objects(self._lake.storage), self._spec, engine)
        invalid_requests = counts.pop("", 0)
        return MutationCompletion(
            pipeline=self._spec.pipeline,
            number=self._batch.number,
            generation=self._batch.generation,
            outcome=APPLIED,
            at=iso_now(),
            engine=engine.name,
            requests=counts,
            invalid_requests=invalid_requests,
            invalid_values=invalid_values,
            tables=tuple(tables),
            seconds={name: round(seconds, 3) for name, seconds in self._seconds.items()},
        )

    def _existing_tables(self) -> list[TableSpec]:
        key = paths.table
        return [t for t in mutable_tables(self._spec) if self._lake.open(key(self._spec.pipeline, t.name)) is not None]

    def _mutate_table(self, engine: BatchEngine, table: TableSpec) -> tuple[TableMutation, int]:
        """Applies the batch to one table. Returns the result, and the number of invalid values."""
        merge: MergeFunction | None = None
        attempts, pause, optimized = 0, 0.0, False
        with self._phase("compare"):
            changes = engine.table_changes(table)
            if changes.affected.periods > 0 and not engine.commits.has_committed(table.name):
                merge = changes.plan()
        to_optimize = self._batch.number % self._mutations_spec.optimize_every == 0
        if merge is not None or to_optimize:
            with self._phase("wait"):
                stack = contextlib.ExitStack()
                turn = stack.enter_context(self._acquire_turn(table.name))
            started = time.monotonic()
            with stack:
                if merge is not None:
                    with self._phase("merge"):
                        attempts = merge(turn.check)
                self._fault(f"merged:{table.name}")
                if to_optimize:
                    with self._phase("optimize"):
                        optimized = self._optimize(table, turn)
            pause = time.monotonic() - started
        self._fault(f"optimized:{table.name}")
        commit = engine.commits.find_commit(table.name) if changes.affected.periods else None
        result = TableMutation(
            table=table.name,
            rows=merge_metric(commit, "numTargetRowsUpdated"),
            files_removed=merge_metric(commit, "numTargetFilesRemoved"),
            files_added=merge_metric(commit, "numTargetFilesAdded"),
            version=-1 if commit is None else commit.version,
            engine=engine_of(commit),
            attempts=max(attempts, 1),
            pause_seconds=round(pause, 3),
            optimized=optimized,
        )
        if commit is not None and result.rows:
            with self._phase("notify"):
                self._notify(engine, table, commit.version)
        self._fault(f"notified:{table.name}")
        return result, changes.invalid_values

    def _optimize(self, table: TableSpec, turn: Turn) -> bool:
        """Runs OPTIMIZE on the table within the held write turn, then on the state tables."""

        def held_turn(_: str) -> AbstractContextManager[Turn]:
            return contextlib.nullcontext(turn)

        results = [
            optimize_table(self._spark, self._lake, self._spec.pipeline, layout, acquire_turn=held_turn)
            for layout in (Layout.from_spec(table), *state_table_layouts(self._mutations_spec))
        ]
        return not results[0].skipped

    def _notify(self, engine: BatchEngine, table: TableSpec, version: int) -> None:
        """Notifies the changed rows of a table, if it has a notification table."""
        name = self._mutations_spec.notifications
        spec = None if name is None else self._spec.table(name)
        if spec is None or spec.announces is None or spec.announces.table != table.name:
            return
        if self._lake.open(paths.table(self._spec.pipeline, spec.name)) is None:
            return
        if not engine.commits.has_committed(spec.name):
            engine.notify(table, spec, key=spec.announces.key, version=version)

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - started
