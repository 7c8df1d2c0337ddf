"""Takes rows out for good that a mutation deleted long ago, beyond which no late request can bring them back.

A deleted row stays, marked, so that a request that arrives late can still undo the deletion. After `purge_after_days`
it is removed; its bytes go with the VACUUM that follows the table's retention.
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
from deltaworks.control.locks.turn import write_turn
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.provenance import PURGE_DELETED, current_run, user_metadata
from deltaworks.control.records.mutation import MutationBatches
from deltaworks.mutations.bounds import declared_mutations, mutable_tables
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.mutation import DELETED_COLUMN, MUTATION_COLUMN, ORG_COLUMN, MutationsSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.lake import Lake
from deltaworks.tables.spark.session import USER_METADATA, conflicts_retried, session_settings

#: A run takes the rows of so many organisations; the next one goes on.
MAX_ORGANISATIONS = 1_000


@dataclass(frozen=True, slots=True)
class PurgeResult:
    """Rows of one table that were removed, or would be in a dry run, and of how many organisations."""

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
) -> list[PurgeResult]:
    """Remove the rows of a pipeline's mutable tables that were deleted `purge_after_days` ago or earlier.

    Idempotent; takes each table's write turn. How long ago is told by the batch that deleted a row, and when it ended.

    Raises:
        ConfigError: MUTATIONS_UNDECLARED.
        ConcurrencyError: TURN_NOT_GRANTED, TURN_LOST, DELTA_CONFLICT.
    """
    spec = catalog.pipeline(pipeline)
    declared = declared_mutations(spec)
    lake, objects = Lake(catalog.environment.lake), open_objects(catalog.environment.lake)
    limit = (utc_now() - timedelta(days=declared.purge_after_days)).isoformat(timespec="milliseconds")
    newest = MutationBatches(objects, pipeline).newest_ended_before(limit)
    purge = _Purge(
        spark.newSession(), lake, objects, spec, declared, newest=newest, max_organisations=max_organisations
    )
    return [purge.table(table.name, dry_run=dry_run) for table in mutable_tables(spec)]


class _Purge:
    """What was deleted by batch `newest` or one before it."""

    def __init__(
        self,
        session: SparkSession,
        lake: Lake,
        objects: ObjectStore,
        spec: PipelineSpec,
        declared: MutationsSpec,
        *,
        newest: int,
        max_organisations: int,
    ) -> None:
        self._session = session
        self._lake = lake
        self._objects = objects
        self._spec = spec
        self._declared = declared
        self._newest = newest
        self._max_organisations = max_organisations

    def table(self, name: str, *, dry_run: bool) -> PurgeResult:
        began = time.monotonic()
        key = paths.table(self._spec.pipeline, name)
        if self._lake.open(key) is None:
            return PurgeResult(name, dry_run, 0, 0, 0.0, "it does not exist yet")
        if self._newest == 0:
            reason = f"no mutation batch ended more than {self._declared.purge_after_days} days ago"
            return PurgeResult(name, dry_run, 0, 0, 0.0, reason)
        uri = self._lake.storage.spark_uri(key)
        rows = self._session.read.format("delta").load(uri).where(self._old())
        counted = rows.groupBy(ORG_COLUMN).count().orderBy(ORG_COLUMN).limit(self._max_organisations).collect()
        found = {row[ORG_COLUMN]: int(row["count"]) for row in counted}
        if found and not dry_run:
            self._delete(name, uri, F.col(ORG_COLUMN).isin(*found) & self._old())
        return PurgeResult(name, dry_run, sum(found.values()), len(found), time.monotonic() - began)

    def _old(self) -> Column:
        return (F.col(MUTATION_COLUMN) <= self._newest) & F.col(DELETED_COLUMN)

    def _delete(self, name: str, uri: str, condition: Column) -> None:
        made = user_metadata(pipeline=self._spec.pipeline, batch=self._newest, operation=PURGE_DELETED)
        longest = self._declared.max_turn_seconds
        with write_turn(self._objects, self._spec.pipeline, name, by=current_run(), max_turn_seconds=longest) as turn:
            for attempt in conflicts_retried(name):
                with attempt, session_settings(self._session, {USER_METADATA: made}):
                    turn.check()
                    DeltaTable.forPath(self._session, uri).delete(condition)
