"""The input of a batch as frames: its requests, their resolved intervals, the former intervals, and late rows."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaworks.control import paths
from deltaworks.control.job import as_deltaworks_error
from deltaworks.control.records.mutation import MutationBatch, VersionRange
from deltaworks.errors import ContractError
from deltaworks.maintenance.table_health.measure import file_sizes_by_partition
from deltaworks.mutations.bounds import Arrivals, arrivals, declared_mutations, mutable_spec
from deltaworks.mutations.differences import changed_stretches, joined, late_stretches, whole_cover
from deltaworks.mutations.merge import NAMED_ORGANISATIONS, Reach, reach_of
from deltaworks.mutations.pointers import local_checkpoint
from deltaworks.mutations.requests import refusal, resolving
from deltaworks.mutations.resolve import INTERVAL_SCHEMA, resolve
from deltaworks.specs.mutation import MUTATION_COLUMN, ORG_COLUMN, REQUEST_COLUMNS
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import TableSpec
from deltaworks.tables.lake import Lake


@dataclass(frozen=True, slots=True)
class Scope:
    """The organisations with new requests, which a batch reads.

    They are `names` while they are few, else the rows of `frame`. Without either, all organisations are read.
    """

    names: tuple[str, ...] | None
    frame: DataFrame | None = None

    @property
    def empty(self) -> bool:
        """Whether there is no organisation."""
        return self.names == ()

    def within(self, rows: DataFrame) -> DataFrame:
        """The rows of these organisations."""
        if self.names is not None:
            return rows.where(F.col(ORG_COLUMN).isin(*self.names)) if self.names else rows.limit(0)
        return rows if self.frame is None else rows.join(self.frame, ORG_COLUMN, "left_semi")

    def outside(self, rows: DataFrame) -> DataFrame:
        """The rows of all others."""
        if self.names is not None:
            return rows.where(~F.col(ORG_COLUMN).isin(*self.names)) if self.names else rows
        return rows.limit(0) if self.frame is None else rows.join(self.frame, ORG_COLUMN, "left_anti")

    def named(self, prefix: str) -> Column:
        """The condition that prunes a table by organisation; true where they are too many to list."""
        return F.lit(True) if not self.names else F.col(f"{prefix}.{ORG_COLUMN}").isin(*self.names)


EVERYTHING = Scope(None)


def scope_of(requests: DataFrame, arrived: Arrivals, condition: str) -> Scope:
    """The organisations of new requests; all where requests were removed too, since nothing says whose those were."""
    if arrived.everything or arrived.removed:
        return EVERYTHING
    if not arrived.partitions:
        return Scope(())
    touched = requests.where(condition).where(F.col(ORG_COLUMN).isNotNull()).select(ORG_COLUMN).distinct()
    named = [row[0] for row in touched.limit(NAMED_ORGANISATIONS + 1).collect()]
    return Scope(tuple(sorted(named))) if len(named) <= NAMED_ORGANISATIONS else Scope(None, touched.localCheckpoint())


@dataclass(frozen=True, slots=True)
class Work:
    """The stretches that a batch changes in one table, materialised."""

    stretches: DataFrame
    reach: Reach


class BatchFrames:
    """The frames of one batch, each computed once. They are the same each time a batch is begun, until it has ended.

    Requests are read at the version the batch fixed. Arrived rows are read from the current table: those that arrived
    since do no harm, and the next batch reads them again. Frames that are used repeatedly are kept on the executors,
    where a merge into the table they were computed from does not change them; a lost executor fails the batch, which
    is repeated.
    """

    def __init__(self, session: SparkSession, lake: Lake, spec: PipelineSpec, batch: MutationBatch) -> None:
        self._session = session
        self._lake = lake
        self._spec = spec
        self._batch = batch
        self._declared = declared_mutations(spec)
        self.arrivals = self._arrivals(batch.requests)
        self.scope = self._scope()
        self.requests = self._requests(self.scope)
        if not self.scope.empty:
            self.requests = local_checkpoint(self.requests)
        self._with_intervals = self._organisations_of(self._declared.intervals)
        self.stored = self._stored()
        with resolving(session, requests=0 if self.scope.empty else self.requests.count()):
            self.resolved = local_checkpoint(resolve(self.requests)) if not self.scope.empty else self.stored.limit(0)
            self.changed = local_checkpoint(changed_stretches(self.scope.within(self.stored), self.resolved))

    def rows(self, table: str) -> DataFrame:
        """The rows of the current version of a table."""
        return self._session.read.format("delta").load(self._lake.storage.spark_uri(self._key(table)))

    def new_requests(self) -> DataFrame:
        """The requests that arrived in the batch's own span."""
        spec = self._spec.table(self._batch.requests.table)
        return self._requests(
            self.scope, condition=self.arrivals.condition(spec.column_types()) if self.arrivals else "false"
        )

    def request_counts(self) -> dict[str, int]:
        """The number of new requests by operation; ineffective ones are counted under an empty name."""
        operation = F.when(refusal().isNull(), F.col("op")).otherwise("")
        counts = self.new_requests().groupBy(operation.alias("op")).count().collect()
        return {row["op"]: int(row["count"]) for row in counts}

    def work(self, table: TableSpec) -> Work:
        """The stretches that the batch changes in a mutable table."""
        if self._batch.everything:
            stretches = whole_cover(self.resolved, self._touched_before(table))
        elif not self._with_intervals:
            # Every interval is new, so that its rows are compared in any case.
            stretches = joined(self.changed, late_stretches(self._arrived(table).limit(0), self.resolved))
        else:
            stretches = joined(self.changed, late_stretches(self._arrived(table), self._current()))
        stretches = local_checkpoint(stretches)
        return Work(stretches, reach_of(stretches))

    def _key(self, table: str) -> str:
        return paths.table(self._spec.pipeline, table)

    def _arrivals(self, span: VersionRange) -> Arrivals:
        if span.is_empty:
            return Arrivals()
        return arrivals(self._lake, self._key(span.table), after=span.after, up_to=span.up_to)

    def _scope(self) -> Scope:
        if self._batch.organisation is not None:
            return Scope((self._batch.organisation,))
        if self._batch.everything:
            return EVERYTHING
        types = self._spec.table(self._batch.requests.table).column_types()
        return scope_of(self._all_requests(), self.arrivals, self.arrivals.condition(types))

    def _all_requests(self) -> DataFrame:
        span = self._batch.requests
        uri = self._lake.storage.spark_uri(self._key(span.table))
        try:
            return self._session.read.format("delta").option("versionAsOf", span.up_to).load(uri)
        except Exception as error:
            raise _bounds_gone(self._batch, error) from error

    def _requests(self, scope: Scope, *, condition: str = "true") -> DataFrame:
        """Requests as `resolve` reads them, and the name they may assign."""
        columns = [F.col(name) for name in REQUEST_COLUMNS]
        return scope.within(self._all_requests()).where(condition).select(*columns, F.col("event_time").alias("time"))

    def _stored(self) -> DataFrame:
        """The intervals as the last batch left them. A batch writes them last."""
        name = self._declared.intervals
        if self._lake.open(self._key(name)) is None:
            return self._session.createDataFrame([], INTERVAL_SCHEMA)
        return self.rows(name)

    def _current(self) -> DataFrame:
        """The intervals with this batch, of all organisations."""
        return self.scope.outside(self.stored).unionByName(self.resolved)

    def _arrived(self, table: TableSpec) -> DataFrame:
        """Organisation, id and time of rows that arrived since the last batch."""
        span = next((span for span in self._batch.tables if span.table == table.name), None)
        rows = self.rows(table.name)
        new_rows = Arrivals() if span is None else self._arrivals(span)
        if not new_rows:
            rows = rows.limit(0)
        elif self._batch.organisation is not None:
            rows = rows.where(F.col(ORG_COLUMN) == self._batch.organisation)
        elif self.scope.names is not None:
            # No other organisation has an interval that a row could fall into.
            rows = _within(rows, self._with_intervals | set(self.scope.names))
        arrived = rows.where(new_rows.condition(table.column_types()))
        return arrived.select(
            ORG_COLUMN, F.col(mutable_spec(table).origin).alias("id"), F.col("event_time").alias("time")
        )

    def _organisations_of(self, table: str) -> set[str]:
        """The organisations that have rows in a table that mutations maintain, from its log."""
        partitions = file_sizes_by_partition(self._lake, self._key(table))
        return {str(dict(partition)[ORG_COLUMN]) for partition in partitions}

    def may_have_names(self) -> bool:
        """Whether an organisation the batch reads has names already."""
        named = self._organisations_of(self._declared.names)
        return bool(named) if self.scope.names is None else not named.isdisjoint(self.scope.names)

    def _touched_before(self, table: TableSpec) -> DataFrame:
        touched = self.scope.within(self.rows(table.name)).where(F.col(MUTATION_COLUMN).isNotNull())
        return touched.select(ORG_COLUMN, F.col(mutable_spec(table).origin).alias("id")).distinct()


def _within(rows: DataFrame, organisations: set[str]) -> DataFrame:
    few = len(organisations) <= NAMED_ORGANISATIONS
    return rows.where(F.col(ORG_COLUMN).isin(*sorted(organisations))) if few else rows


def _bounds_gone(batch: MutationBatch, error: Exception) -> Exception:
    mapped = as_deltaworks_error(error)
    if mapped.condition != "JOB_FAILED":
        return mapped
    return ContractError(
        "MUTATION_BOUNDS_UNAVAILABLE",
        f"Mutation batch {batch.number} of {batch.pipeline!r} reads {batch.requests.table!r} at version "
        f"{batch.requests.up_to}, which is not there any more: {mapped.message}",
        hint=f"`deltaworks mutations run {batch.pipeline} --everything --no-dry-run` gives it up and compares all rows "
        "with all requests again.",
    )
