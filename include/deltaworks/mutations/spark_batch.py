"""Applies a mutation batch of any size with Spark. Small merges of its result are done by delta-rs (`small_merge`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.records.mutation import MutationBatch
from deltaworks.mutations.batch_engine import MergeFunction, PlannedChanges
from deltaworks.mutations.batch_frames import BatchFrames, TableChanges
from deltaworks.mutations.bounds import mutations_spec
from deltaworks.mutations.commits import SparkStepCommits
from deltaworks.mutations.entity_sizes import LargestEntity, large_entities
from deltaworks.mutations.interval_diff import local_checkpoint
from deltaworks.mutations.merge import (
    TableMerge,
    count_invalid_values,
    merge_settings,
    merge_source,
    set_deletion_vectors,
)
from deltaworks.mutations.notifications import changed_rows, notifications
from deltaworks.mutations.requests import resolve_settings
from deltaworks.mutations.small_merge import SmallMerge, plan_merge
from deltaworks.mutations.state_tables import (
    interval_changes,
    merge_intervals,
    merge_names,
    name_changes,
    resolve_names,
)
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import TableSpec
from deltaworks.tables.lake import Lake

log = logging.getLogger(__name__)


class SparkBatch:
    """One batch as DataFrames.

    Args:
        session: a session used only for this batch.
        before_commit: called before each commit; its errors end the batch.
    """

    name: Final = "spark"

    def __init__(
        self,
        session: SparkSession,
        lake: Lake,
        spec: PipelineSpec,
        batch: MutationBatch,
        *,
        before_commit: Callable[[], None],
    ) -> None:
        self._session = session
        self._lake = lake
        self._spec = spec
        self._batch = batch
        self._mutations_spec = mutations_spec(spec)
        self.commits = SparkStepCommits(session, lake, spec.pipeline, batch.number, before_commit=before_commit)
        self._frames = BatchFrames(session, lake, spec, batch)

    @property
    def request_count(self) -> int:
        """The number of requests of the organisations in scope."""
        return self._frames.request_count

    def request_counts(self) -> dict[str, int]:
        """Returns the number of new requests by operation. Invalid requests are counted under an empty name."""
        return self._frames.request_counts()

    def table_changes(self, table: TableSpec) -> PlannedChanges:
        """Returns the changes to a mutable table."""
        changes = self._frames.table_changes(table)
        return PlannedChanges(
            affected=changes.affected,
            invalid_values=count_invalid_values(changes.periods, table),
            plan=lambda: self._plan_merge(table, changes),
        )

    def _plan_merge(self, table: TableSpec, changes: TableChanges) -> MergeFunction:
        key, number = paths.table(self._spec.pipeline, table.name), self._batch.number
        max_bytes = self._mutations_spec.small_merge_bytes
        plan = plan_merge(self._lake, key, table, changes.affected, small_merge_bytes=max_bytes)
        log.info("table=%s batch=%d engine=%s %s", table.name, number, plan.engine, "; ".join(plan.reasons))
        if plan.engine == "delta_rs":
            source = merge_source(table, changes.periods)
            delta_rs_merge = SmallMerge(table, source, changes.affected, batch=number)
            return lambda check: self.commits.commit_once_with_delta_rs(table.name, delta_rs_merge.execute, check=check)
        merge = TableMerge(table, changes.periods, changes.affected)

        def execute(check: Callable[[], None]) -> int:
            # This is a separate commit and must not carry the merge's transaction.
            set_deletion_vectors(self._session, self._lake, self._spec.pipeline, table, check=check)
            return self.commits.commit_once(
                table.name,
                lambda: merge.execute(self._session, self._uri(table.name), batch=number),
                check=check,
                settings=self._merge_settings(plan.target_bytes),
            )

        return execute

    def update_names(self, *, has_new_names: bool) -> None:
        """Commits the changes of the mapping from ids to names."""
        frames, name = self._frames, self._mutations_spec.names
        if not has_new_names and not frames.may_have_names():
            return
        if frames.scope.is_empty or self.commits.has_committed(name):
            return
        names = resolve_names(frames.requests, rule=self._mutations_spec.merge_names)
        changes = local_checkpoint(name_changes(names, frames.scope.filter(frames.rows(name))))
        if changes.isEmpty():
            return
        number, organisations = self._batch.number, frames.scope.pruning_condition("target")
        self.commits.commit_once(
            name,
            lambda: merge_names(self._session, self._uri(name), changes, batch=number, organisations=organisations),
            settings=self._merge_settings(0),
        )

    def notify(self, table: TableSpec, notification_table: TableSpec, *, key: str, version: int) -> None:
        """Commits the notifications of the rows that the batch changed in `table`."""
        rows = notifications(
            changed_rows(self._frames.rows(table.name), self._batch.number),
            self._frames.changed_periods,
            data_table=table,
            notification_table=notification_table,
            key=key,
            batch=self._batch.number,
            at=parse_iso(self._batch.at) or utc_now(),
            data_version=version,
        )
        uri = self._uri(notification_table.name)
        self.commits.commit_once(notification_table.name, lambda: rows.write.format("delta").mode("append").save(uri))

    def update_intervals(self) -> None:
        """Commits the changes of the stored intervals."""
        frames, name = self._frames, self._mutations_spec.intervals
        if frames.scope.is_empty or self.commits.has_committed(name):
            return
        changes = local_checkpoint(
            interval_changes(frames.scope.filter(frames.stored_intervals), frames.resolved_intervals)
        )
        if changes.isEmpty():
            return
        organisations = frames.scope.pruning_condition("target")
        self.commits.commit_once(
            name,
            lambda: merge_intervals(self._session, self._uri(name), changes, organisations=organisations),
            settings=self._merge_settings(0),
        )

    def large_entities(self, *, limit: int) -> list[LargestEntity]:
        """Returns the largest entity of every organisation that has one of more than `limit` ids."""
        with resolve_settings(self._session, request_count=self.request_count):
            return large_entities(self._frames.resolved_intervals, limit=limit)

    def organisations_in_scope(self, organisations: set[str]) -> set[str]:
        """Returns those of the organisations that the batch covers."""
        return self._frames.scope.intersection(organisations)

    def _uri(self, table: str) -> str:
        return self._lake.storage.spark_uri(paths.table(self._spec.pipeline, table))

    def _merge_settings(self, target_bytes: int) -> dict[str, str]:
        return merge_settings(target_bytes=target_bytes, cores=self._session.sparkContext.defaultParallelism)
