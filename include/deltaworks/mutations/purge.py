"""Purges rows that a mutation deleted long ago. Afterwards late requests can no longer restore them.

A deleted row is only marked, so that a late request can undo the deletion. It is removed after `purge_after_days`;
VACUUM frees its bytes after the table's retention.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta

from delta.tables import DeltaTable
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.write_turn import write_turn
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.provenance import PURGE_DELETED, current_run, user_metadata
from deltaworks.maintenance.deletion_limits import DeletionLimit, alert_limit_exceeded, resolve_limit_exceeded
from deltaworks.mutations.bounds import mutable_tables, mutations_spec
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.mutation import DELETED_COLUMN, MUTATION_COLUMN, ORG_COLUMN, MutationsSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.lake import Lake
from deltaworks.tables.spark.session import USER_METADATA, override_settings, retry_conflicts
from deltaworks.tables.table_swap import table_content

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
        if not dry_run and (skip_reason := self._limit_exceeded_reason(name, purged, table_content(opened).rows)):
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
