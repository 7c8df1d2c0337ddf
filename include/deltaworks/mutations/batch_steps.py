"""Runs the steps of one mutation batch in order: data tables, notifications, names, intervals, the check of sizes.

The batch is compared with the stored intervals, so the intervals are written last. Until then, a run that resumes after
a crash computes the same changes. Each step is one commit, made once, and is skipped if nothing differs.
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
from deltaworks.control.objects import open_objects
from deltaworks.control.records.mutation import APPLIED, MutationBatch, MutationCompletion, TableMutation
from deltaworks.maintenance.layout import Layout
from deltaworks.maintenance.optimize import optimize_table
from deltaworks.mutations.batch_frames import BatchFrames, TableChanges
from deltaworks.mutations.bounds import mutable_tables, mutations_spec
from deltaworks.mutations.commits import StepCommits, engine_of, merge_metric
from deltaworks.mutations.entity_sizes import check_entity_sizes
from deltaworks.mutations.interval_diff import local_checkpoint
from deltaworks.mutations.merge import TableMerge, count_invalid_values, merge_settings, set_deletion_vectors
from deltaworks.mutations.notifications import changed_rows, notifications
from deltaworks.mutations.requests import resolve_settings
from deltaworks.mutations.small_merge import SmallMerge, plan_merge
from deltaworks.mutations.state_tables import (
    RENAME_NAME,
    ensure_state_tables,
    interval_changes,
    merge_intervals,
    merge_names,
    name_changes,
    resolve_names,
    state_table_layouts,
)
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import TableSpec
from deltaworks.tables.lake import Lake

log = logging.getLogger(__name__)
#: Runs a merge and returns the number of attempts. Its argument is called before each attempt.
MergeFunction = Callable[[Callable[[], None]], int]


class BatchSteps:
    """Applies one batch. Call `apply` once.

    Args:
        acquire_turn: acquires the write turn of a table.
        check: called before each commit; its errors end the batch.
        fault: test hook, called at `resolved`, `merged:<table>`, `optimized:<table>`, `named`, `notified:<table>`,
            `stored` and `ended`.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        spec: PipelineSpec,
        batch: MutationBatch,
        *,
        acquire_turn: TurnFactory,
        check: Callable[[], None],
        fault: Callable[[str], None],
    ) -> None:
        # Commit settings belong to a session, so the batch needs its own.
        self._session = spark.newSession()
        self._lake = lake
        self._spec = spec
        self._batch = batch
        self._mutations_spec = mutations_spec(spec)
        self._acquire_turn = acquire_turn
        self._commits = StepCommits(self._session, lake, spec.pipeline, batch.number, before_commit=check)
        self._fault = fault
        self._seconds: dict[str, float] = {}
        self._invalid_values = 0

    def apply(self) -> MutationCompletion:
        """Runs the remaining steps of the batch. Idempotent. Returns the result, which the caller records."""
        ensure_state_tables(self._lake, self._spec, self._mutations_spec)
        with self._phase("resolve"):
            frames = BatchFrames(self._session, self._lake, self._spec, self._batch)
            counts = frames.request_counts()
        self._fault("resolved")
        tables = tuple(self._mutate_table(frames, table) for table in self._existing_tables())
        with self._phase("names"):
            if counts.get(RENAME_NAME) or frames.may_have_names():
                self._update_names(frames)
        self._fault("named")
        with self._phase("intervals"):
            self._update_intervals(frames)
        self._fault("stored")
        with self._phase("sizes"), resolve_settings(self._session, request_count=frames.request_count):
            check_entity_sizes(open_objects(self._lake.storage), self._spec, frames)
        invalid = counts.pop("", 0)
        return MutationCompletion(
            pipeline=self._spec.pipeline,
            number=self._batch.number,
            generation=self._batch.generation,
            outcome=APPLIED,
            at=iso_now(),
            requests=counts,
            invalid_requests=invalid,
            invalid_values=self._invalid_values,
            tables=tables,
            seconds={name: round(seconds, 3) for name, seconds in self._seconds.items()},
        )

    def _existing_tables(self) -> list[TableSpec]:
        key = paths.table
        return [t for t in mutable_tables(self._spec) if self._lake.open(key(self._spec.pipeline, t.name)) is not None]

    def _mutate_table(self, frames: BatchFrames, table: TableSpec) -> TableMutation:
        merge: MergeFunction | None = None
        attempts, pause, optimized = 0, 0.0, False
        with self._phase("compare"):
            changes = frames.table_changes(table)
            self._invalid_values += count_invalid_values(changes.periods, table)
            if changes.affected.periods > 0 and not self._commits.has_committed(table.name):
                merge = self._plan_merge(table, changes)
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
        commit = self._commits.find_commit(table.name) if changes.affected.periods else None
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
                self._notify(frames, table, commit.version)
        self._fault(f"notified:{table.name}")
        return result

    def _plan_merge(self, table: TableSpec, changes: TableChanges) -> MergeFunction:
        """Plans the merge of the batch into a table and returns a function that runs it.

        Planning takes place before the write turn, so that the stream does not wait for it.
        """
        key, number = paths.table(self._spec.pipeline, table.name), self._batch.number
        max_bytes = self._mutations_spec.small_merge_bytes
        plan = plan_merge(self._lake, key, table, changes.affected, small_merge_bytes=max_bytes)
        log.info("table=%s batch=%d engine=%s %s", table.name, number, plan.engine, "; ".join(plan.reasons))
        if plan.engine == "delta_rs":
            delta_rs_merge = SmallMerge(table, changes.periods, changes.affected, batch=number)
            return lambda check: self._commits.commit_once_with_delta_rs(
                table.name, delta_rs_merge.execute, check=check
            )
        merge = TableMerge(table, changes.periods, changes.affected)

        def execute(check: Callable[[], None]) -> int:
            # This is a separate commit and must not carry the merge's transaction.
            set_deletion_vectors(self._session, self._lake, self._spec.pipeline, table, check=check)
            return self._commits.commit_once(
                table.name,
                lambda: merge.execute(self._session, self._uri(table.name), batch=number),
                check=check,
                settings=self._merge_settings(plan.target_bytes),
            )

        return execute

    def _optimize(self, table: TableSpec, turn: Turn) -> bool:
        """Runs OPTIMIZE on the table within the held write turn, then on the state tables."""

        def held_turn(_: str) -> AbstractContextManager[Turn]:
            return contextlib.nullcontext(turn)

        results = [
            optimize_table(lambda: self._session, self._lake, self._spec.pipeline, layout, acquire_turn=held_turn)
            for layout in (Layout.from_spec(table), *state_table_layouts(self._mutations_spec))
        ]
        return not results[0].skipped

    def _update_names(self, frames: BatchFrames) -> None:
        name = self._mutations_spec.names
        if frames.scope.is_empty or self._commits.has_committed(name):
            return
        names = resolve_names(frames.requests, rule=self._mutations_spec.merge_names)
        changes = local_checkpoint(name_changes(names, frames.scope.filter(frames.rows(name))))
        if changes.isEmpty():
            return
        number, organisations = self._batch.number, frames.scope.pruning_condition("target")
        self._commits.commit_once(
            name,
            lambda: merge_names(self._session, self._uri(name), changes, batch=number, organisations=organisations),
            settings=self._merge_settings(0),
        )

    def _notify(self, frames: BatchFrames, table: TableSpec, version: int) -> None:
        notification_table = self._notification_table(table)
        if (
            notification_table is None
            or notification_table.announces is None
            or self._commits.has_committed(notification_table.name)
        ):
            return
        rows = notifications(
            changed_rows(frames.rows(table.name), self._batch.number),
            frames.changed_periods,
            data_table=table,
            notification_table=notification_table,
            key=notification_table.announces.key,
            batch=self._batch.number,
            at=parse_iso(self._batch.at) or utc_now(),
            data_version=version,
        )
        uri = self._uri(notification_table.name)
        self._commits.commit_once(notification_table.name, lambda: rows.write.format("delta").mode("append").save(uri))

    def _notification_table(self, table: TableSpec) -> TableSpec | None:
        """Returns the notification table of a data table, or None if there is none yet."""
        name = self._mutations_spec.notifications
        spec = None if name is None else self._spec.table(name)
        if spec is None or spec.announces is None or spec.announces.table != table.name:
            return None
        return spec if self._lake.open(paths.table(self._spec.pipeline, spec.name)) is not None else None

    def _update_intervals(self, frames: BatchFrames) -> None:
        name = self._mutations_spec.intervals
        if frames.scope.is_empty or self._commits.has_committed(name):
            return
        changes = local_checkpoint(
            interval_changes(frames.scope.filter(frames.stored_intervals), frames.resolved_intervals)
        )
        if changes.isEmpty():
            return
        organisations = frames.scope.pruning_condition("target")
        self._commits.commit_once(
            name,
            lambda: merge_intervals(self._session, self._uri(name), changes, organisations=organisations),
            settings=self._merge_settings(0),
        )

    def _uri(self, table: str) -> str:
        return self._lake.storage.spark_uri(paths.table(self._spec.pipeline, table))

    def _merge_settings(self, target_bytes: int) -> dict[str, str]:
        return merge_settings(target_bytes=target_bytes, cores=self._session.sparkContext.defaultParallelism)

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - started
