"""The steps of one mutation batch, in their order: data tables, names, notifications, intervals, end.

The batch is compared with the stored intervals, so they are written last: until then a run that continues after a
crash computes the same work. Every step is one commit that lands once, and changes nothing where nothing differs.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.clock import iso_now, parse_iso, utc_now
from deltaworks.control.locks.write_turn import Turn, TurnFactory
from deltaworks.control.records.mutation import APPLIED, MutationBatch, MutationCompletion, TableMutation
from deltaworks.maintenance.layout import Layout
from deltaworks.maintenance.optimize import optimize_table
from deltaworks.mutations.bounds import declared_mutations, mutable_tables
from deltaworks.mutations.commits import StepCommits, engine_of, metric
from deltaworks.mutations.frames import BatchFrames, Work
from deltaworks.mutations.kept_tables import (
    RENAME_NAME,
    ensure_kept_tables,
    interval_changes,
    kept_layouts,
    merge_intervals,
    merge_names,
    name_changes,
    names_from,
)
from deltaworks.mutations.merge import TableMerge, merge_settings, set_deletion_vectors, unmatched
from deltaworks.mutations.notifications import changed_rows, notifications
from deltaworks.mutations.pointers import local_checkpoint
from deltaworks.mutations.small_merge import SmallMerge, plan_merge
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import TableSpec
from deltaworks.tables.lake import Lake

log = logging.getLogger(__name__)
#: Merges, calling its argument before each attempt; returns the number of attempts.
Merge = Callable[[Callable[[], None]], int]


class BatchSteps:
    """Applies one batch. Call `apply` once.

    Args:
        turn_of: gives the write turn of a table.
        check: called before each commit; what it raises ends the batch.
        fault: called at `resolved`, `merged:<table>`, `optimized:<table>`, `named`, `notified:<table>`, `stored` and
            `ended`, by tests.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        spec: PipelineSpec,
        batch: MutationBatch,
        *,
        turn_of: TurnFactory,
        check: Callable[[], None],
        fault: Callable[[str], None],
    ) -> None:
        # Settings of commits are a session's, and must be nobody else's.
        self._session = spark.newSession()
        self._lake = lake
        self._spec = spec
        self._batch = batch
        self._declared = declared_mutations(spec)
        self._turn_of = turn_of
        self._commits = StepCommits(self._session, lake, spec.pipeline, batch.number, before=check)
        self._fault = fault
        self._seconds: dict[str, float] = {}
        self._not_fitting = 0

    def apply(self) -> MutationCompletion:
        """Do what is missing of the batch. Idempotent. Returns the result, which is not recorded yet."""
        ensure_kept_tables(self._lake, self._spec, self._declared)
        with self._phase("resolve"):
            frames = BatchFrames(self._session, self._lake, self._spec, self._batch)
            counts = frames.request_counts()
        self._fault("resolved")
        tables = tuple(self._table(frames, table) for table in self._present())
        with self._phase("names"):
            if counts.get(RENAME_NAME) or frames.may_have_names():
                self._names(frames)
        self._fault("named")
        with self._phase("intervals"):
            self._intervals(frames)
        self._fault("stored")
        refused = counts.pop("", 0)
        return MutationCompletion(
            pipeline=self._spec.pipeline,
            number=self._batch.number,
            generation=self._batch.generation,
            outcome=APPLIED,
            at=iso_now(),
            requests=counts,
            invalid_requests=refused,
            invalid_values=self._not_fitting,
            tables=tables,
            seconds={name: round(seconds, 3) for name, seconds in self._seconds.items()},
        )

    def _present(self) -> list[TableSpec]:
        key = paths.table
        return [t for t in mutable_tables(self._spec) if self._lake.open(key(self._spec.pipeline, t.name)) is not None]

    def _table(self, frames: BatchFrames, table: TableSpec) -> TableMutation:
        merge: Merge | None = None
        attempts, pause, optimized = 0, 0.0, False
        with self._phase("compare"):
            work = frames.work(table)
            self._not_fitting += unmatched(work.stretches, table)
            if work.reach.stretches > 0 and not self._commits.landed(table.name):
                merge = self._merge(table, work)
        to_optimize = self._batch.number % self._declared.optimize_every == 0
        if merge is not None or to_optimize:
            with self._phase("wait"):
                stack = contextlib.ExitStack()
                turn = stack.enter_context(self._turn_of(table.name))
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
        commit = self._commits.commit_of(table.name) if work.reach.stretches else None
        result = TableMutation(
            table=table.name,
            rows=metric(commit, "numTargetRowsUpdated"),
            files_removed=metric(commit, "numTargetFilesRemoved"),
            files_added=metric(commit, "numTargetFilesAdded"),
            version=-1 if commit is None else commit.version,
            engine=engine_of(commit),
            attempts=max(attempts, 1),
            pause_seconds=round(pause, 3),
            optimized=optimized,
        )
        if commit is not None and result.rows:
            with self._phase("notify"):
                self._notify(frames, table, commit.version)
        self._fault(f"notified:{table.name}")
        return result

    def _merge(self, table: TableSpec, work: Work) -> Merge:
        """A function that merges the batch into a table, prepared before the stream has to wait."""
        key, number = paths.table(self._spec.pipeline, table.name), self._batch.number
        bound = self._declared.small_merge_bytes
        plan = plan_merge(self._lake, key, table, work.reach, small_merge_bytes=bound)
        log.info("table=%s batch=%d engine=%s %s", table.name, number, plan.engine, "; ".join(plan.reasons))
        if plan.engine == "delta_rs":
            small = SmallMerge(table, work.stretches, work.reach, batch=number)
            return lambda check: self._commits.once_by_delta_rs(table.name, small.execute, check=check)
        merge = TableMerge(table, work.stretches, work.reach)

        def execute(check: Callable[[], None]) -> int:
            # A commit of its own, without the merge's transaction.
            set_deletion_vectors(self._session, self._lake, self._spec.pipeline, table, check=check)
            return self._commits.once(
                table.name,
                lambda: merge.execute(self._session, self._uri(table.name), batch=number),
                check=check,
                settings=self._settings(plan.target_bytes),
            )

        return execute

    def _optimize(self, table: TableSpec, turn: Turn) -> bool:
        """OPTIMIZE the table within the turn that is held, and the tables that only mutations write."""

        def held(_: str) -> AbstractContextManager[Turn]:
            return contextlib.nullcontext(turn)

        results = [
            optimize_table(lambda: self._session, self._lake, self._spec.pipeline, layout, acquire_turn=held)
            for layout in (Layout.from_spec(table), *kept_layouts(self._declared))
        ]
        return not results[0].skipped

    def _names(self, frames: BatchFrames) -> None:
        name = self._declared.names
        if frames.scope.empty or self._commits.landed(name):
            return
        names = names_from(frames.requests, rule=self._declared.merge_names)
        changes = local_checkpoint(name_changes(names, frames.scope.within(frames.rows(name))))
        if changes.isEmpty():
            return
        number, organisations = self._batch.number, frames.scope.named("target")
        self._commits.once(
            name,
            lambda: merge_names(self._session, self._uri(name), changes, batch=number, organisations=organisations),
            settings=self._settings(0),
        )

    def _notify(self, frames: BatchFrames, table: TableSpec, version: int) -> None:
        announcing = self._announcing(table)
        if announcing is None or announcing.announces is None or self._commits.landed(announcing.name):
            return
        rows = notifications(
            changed_rows(frames.rows(table.name), self._batch.number),
            frames.changed,
            data=table,
            announcing=announcing,
            key=announcing.announces.key,
            batch=self._batch.number,
            at=parse_iso(self._batch.at) or utc_now(),
            data_version=version,
        )
        uri = self._uri(announcing.name)
        self._commits.once(announcing.name, lambda: rows.write.format("delta").mode("append").save(uri))

    def _announcing(self, table: TableSpec) -> TableSpec | None:
        """The notification table that announces a table, where it exists."""
        name = self._declared.notifications
        spec = None if name is None else self._spec.table(name)
        if spec is None or spec.announces is None or spec.announces.table != table.name:
            return None
        return spec if self._lake.open(paths.table(self._spec.pipeline, spec.name)) is not None else None

    def _intervals(self, frames: BatchFrames) -> None:
        name = self._declared.intervals
        if frames.scope.empty or self._commits.landed(name):
            return
        changes = local_checkpoint(interval_changes(frames.scope.within(frames.stored), frames.resolved))
        if changes.isEmpty():
            return
        organisations = frames.scope.named("target")
        self._commits.once(
            name,
            lambda: merge_intervals(self._session, self._uri(name), changes, organisations=organisations),
            settings=self._settings(0),
        )

    def _uri(self, table: str) -> str:
        return self._lake.storage.spark_uri(paths.table(self._spec.pipeline, table))

    def _settings(self, target_bytes: int) -> dict[str, str]:
        return merge_settings(target_bytes=target_bytes, cores=self._session.sparkContext.defaultParallelism)

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - started
