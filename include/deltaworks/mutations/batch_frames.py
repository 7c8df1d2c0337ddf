"""DataFrames of a batch: its requests, their resolved intervals, the stored intervals, and late rows."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaworks.control import paths
from deltaworks.control.records.mutation import MutationBatch, VersionRange
from deltaworks.maintenance.table_health.measure import file_sizes_by_partition
from deltaworks.mutations.bounds import (
    Arrivals,
    bounds_unavailable,
    mutable_spec,
    mutations_spec,
    read_arrivals,
)
from deltaworks.mutations.entities import INTERVAL_SCHEMA, resolve
from deltaworks.mutations.interval_diff import (
    changed_periods,
    full_coverage,
    late_row_periods,
    local_checkpoint,
    merge_periods,
)
from deltaworks.mutations.merge import affected_range
from deltaworks.mutations.requests import invalid_reason, resolve_settings
from deltaworks.mutations.small_merge import MAX_LISTED_ORGANISATIONS, AffectedRange
from deltaworks.specs.mutation import MUTATION_COLUMN, ORG_COLUMN, REQUEST_COLUMNS
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import TableSpec
from deltaworks.tables.lake import Lake


@dataclass(frozen=True, slots=True)
class OrganisationScope:
    """The organisations with new requests.

    A short list is in `organisations`, a long one in `organisations_frame`. If both are None, all organisations are in
    scope.
    """

    organisations: tuple[str, ...] | None
    organisations_frame: DataFrame | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the scope has no organisation."""
        return self.organisations == ()

    def filter(self, rows: DataFrame) -> DataFrame:
        """Returns the rows of the organisations in scope."""
        if self.organisations is not None:
            return rows.where(F.col(ORG_COLUMN).isin(*self.organisations)) if self.organisations else rows.limit(0)
        return (
            rows if self.organisations_frame is None else rows.join(self.organisations_frame, ORG_COLUMN, "left_semi")
        )

    def intersection(self, organisations: set[str]) -> set[str]:
        """Returns those of the organisations that are in scope."""
        if self.organisations is not None:
            return organisations.intersection(self.organisations)
        if self.organisations_frame is None or not organisations:
            return organisations
        matching = self.organisations_frame.where(F.col(ORG_COLUMN).isin(*sorted(organisations)))
        return {row[0] for row in matching.collect()}

    def exclude(self, rows: DataFrame) -> DataFrame:
        """Returns the rows of the organisations that are not in scope."""
        if self.organisations is not None:
            return rows.where(~F.col(ORG_COLUMN).isin(*self.organisations)) if self.organisations else rows
        return (
            rows.limit(0)
            if self.organisations_frame is None
            else rows.join(self.organisations_frame, ORG_COLUMN, "left_anti")
        )

    def pruning_condition(self, prefix: str) -> Column:
        """Returns a condition on the organisation that prunes a table; true if there are too many organisations to
        list.
        """
        return F.lit(True) if not self.organisations else F.col(f"{prefix}.{ORG_COLUMN}").isin(*self.organisations)


ALL_ORGANISATIONS = OrganisationScope(None)


def request_scope(requests: DataFrame, arrivals: Arrivals, condition: str) -> OrganisationScope:
    """Returns the organisations of new requests. If requests were removed, returns all, since their organisations are
    unknown.
    """
    if arrivals.is_unbounded or arrivals.has_removals:
        return ALL_ORGANISATIONS
    if not arrivals.partitions:
        return OrganisationScope(())
    organisations = requests.where(condition).where(F.col(ORG_COLUMN).isNotNull()).select(ORG_COLUMN).distinct()
    names = [row[0] for row in organisations.limit(MAX_LISTED_ORGANISATIONS + 1).collect()]
    return (
        OrganisationScope(tuple(sorted(names)))
        if len(names) <= MAX_LISTED_ORGANISATIONS
        else OrganisationScope(None, organisations.localCheckpoint())
    )


@dataclass(frozen=True, slots=True)
class TableChanges:
    """The periods that a batch changes in one table, as a materialised DataFrame."""

    periods: DataFrame
    affected: AffectedRange


class BatchFrames:
    """The DataFrames of one batch, each computed once and identical in every attempt until the batch ends.

    Requests are read at the recorded version. Rows of the data tables are read from the current version: including
    newer rows is harmless, because the next batch compares them again. Reused DataFrames are checkpointed on the
    executors, so that a merge into their source table does not change them. Losing an executor fails the batch, which
    is then retried.
    """

    def __init__(self, session: SparkSession, lake: Lake, spec: PipelineSpec, batch: MutationBatch) -> None:
        self._session = session
        self._lake = lake
        self._spec = spec
        self._batch = batch
        self._mutations_spec = mutations_spec(spec)
        self.arrivals = self._read_arrivals(batch.requests)
        self.scope = self._request_scope()
        self.requests = self._requests(self.scope)
        if not self.scope.is_empty:
            self.requests = local_checkpoint(self.requests)
        self._organisations_with_intervals = self._organisations_of(self._mutations_spec.intervals)
        self.stored_intervals = self._read_stored_intervals()
        #: The number of requests of the organisations in scope.
        self.request_count = 0 if self.scope.is_empty else self.requests.count()
        with resolve_settings(session, request_count=self.request_count):
            self.resolved_intervals = (
                local_checkpoint(resolve(self.requests)) if not self.scope.is_empty else self.stored_intervals.limit(0)
            )
            self.changed_periods = local_checkpoint(
                changed_periods(self.scope.filter(self.stored_intervals), self.resolved_intervals)
            )

    def rows(self, table: str) -> DataFrame:
        """Returns the rows of the current version of a table."""
        return self._session.read.format("delta").load(self._lake.storage.spark_uri(self._key(table)))

    def new_requests(self) -> DataFrame:
        """Returns the requests that arrived within the version range of the batch."""
        spec = self._spec.table(self._batch.requests.table)
        return self._requests(
            self.scope, condition=self.arrivals.condition(spec.column_types()) if self.arrivals else "false"
        )

    def request_counts(self) -> dict[str, int]:
        """Returns the number of new requests by operation. Invalid requests are counted under an empty name."""
        operation = F.when(invalid_reason().isNull(), F.col("op")).otherwise("")
        counts = self.new_requests().groupBy(operation.alias("op")).count().collect()
        return {row["op"]: int(row["count"]) for row in counts}

    def table_changes(self, table: TableSpec) -> TableChanges:
        """Returns the periods that the batch changes in a mutable table."""
        if self._batch.everything:
            periods = full_coverage(self.resolved_intervals, self._mutated_ids(table))
        elif not self._organisations_with_intervals:
            # Every interval is new, so its rows are compared anyway and late rows need not be found.
            periods = merge_periods(
                self.changed_periods, late_row_periods(self._arrived_rows(table).limit(0), self.resolved_intervals)
            )
        else:
            periods = merge_periods(
                self.changed_periods, late_row_periods(self._arrived_rows(table), self._current_intervals())
            )
        periods = local_checkpoint(periods)
        return TableChanges(periods, affected_range(periods))

    def _key(self, table: str) -> str:
        return paths.table(self._spec.pipeline, table)

    def _read_arrivals(self, span: VersionRange) -> Arrivals:
        if span.is_empty:
            return Arrivals()
        return read_arrivals(self._lake, self._key(span.table), after=span.after, up_to=span.up_to)

    def _request_scope(self) -> OrganisationScope:
        if self._batch.organisation is not None:
            return OrganisationScope((self._batch.organisation,))
        if self._batch.everything:
            return ALL_ORGANISATIONS
        types = self._spec.table(self._batch.requests.table).column_types()
        return request_scope(self._all_requests(), self.arrivals, self.arrivals.condition(types))

    def _all_requests(self) -> DataFrame:
        span = self._batch.requests
        uri = self._lake.storage.spark_uri(self._key(span.table))
        try:
            return self._session.read.format("delta").option("versionAsOf", span.up_to).load(uri)
        except Exception as error:
            raise bounds_unavailable(self._batch, error) from error

    def _requests(self, scope: OrganisationScope, *, condition: str = "true") -> DataFrame:
        """Returns requests in the input schema of `resolve`, with the name that each may assign."""
        columns = [F.col(name) for name in REQUEST_COLUMNS]
        return scope.filter(self._all_requests()).where(condition).select(*columns, F.col("event_time").alias("time"))

    def _read_stored_intervals(self) -> DataFrame:
        """Returns the intervals that the last batch stored in its last step."""
        name = self._mutations_spec.intervals
        if self._lake.open(self._key(name)) is None:
            return self._session.createDataFrame([], INTERVAL_SCHEMA)
        return self.rows(name)

    def _current_intervals(self) -> DataFrame:
        """Returns the intervals including this batch, for all organisations."""
        return self.scope.exclude(self.stored_intervals).unionByName(self.resolved_intervals)

    def _arrived_rows(self, table: TableSpec) -> DataFrame:
        """Returns organisation, id and time of rows that arrived since the last batch."""
        span = next((span for span in self._batch.tables if span.table == table.name), None)
        rows = self.rows(table.name)
        new_rows = Arrivals() if span is None else self._read_arrivals(span)
        if not new_rows:
            rows = rows.limit(0)
        elif self._batch.organisation is not None:
            rows = rows.where(F.col(ORG_COLUMN) == self._batch.organisation)
        elif self.scope.organisations is not None:
            # Other organisations have no intervals.
            rows = _filter_organisations(rows, self._organisations_with_intervals | set(self.scope.organisations))
        arrived_rows = rows.where(new_rows.condition(table.column_types()))
        return arrived_rows.select(
            ORG_COLUMN, F.col(mutable_spec(table).origin).alias("id"), F.col("event_time").alias("time")
        )

    def _organisations_of(self, table: str) -> set[str]:
        """Returns the organisations with rows in a state table, according to its log."""
        partitions = file_sizes_by_partition(self._lake, self._key(table))
        return {str(dict(partition)[ORG_COLUMN]) for partition in partitions}

    def may_have_names(self) -> bool:
        """Returns whether an organisation in scope already has names."""
        organisations = self._organisations_of(self._mutations_spec.names)
        return (
            bool(organisations)
            if self.scope.organisations is None
            else not organisations.isdisjoint(self.scope.organisations)
        )

    def _mutated_ids(self, table: TableSpec) -> DataFrame:
        mutated = self.scope.filter(self.rows(table.name)).where(F.col(MUTATION_COLUMN).isNotNull())
        return mutated.select(ORG_COLUMN, F.col(mutable_spec(table).origin).alias("id")).distinct()


def _filter_organisations(rows: DataFrame, organisations: set[str]) -> DataFrame:
    is_listable = len(organisations) <= MAX_LISTED_ORGANISATIONS
    return rows.where(F.col(ORG_COLUMN).isin(*sorted(organisations))) if is_listable else rows
