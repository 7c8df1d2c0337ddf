"""What a batch reads, as frames: its requests, what they come to, what they came to before, and rows that arrived."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaworks.control import paths
from deltaworks.control.job import as_deltaworks_error
from deltaworks.control.records.mutation import MutationBatch, Span
from deltaworks.errors import ContractError
from deltaworks.maintenance.table_health.measure import files_by_partition
from deltaworks.mutations import scope as scopes
from deltaworks.mutations.arrivals import Arrivals, arrivals
from deltaworks.mutations.bounds import declared_mutations
from deltaworks.mutations.differences import changed_stretches, joined, late_stretches, whole_cover
from deltaworks.mutations.merge import NAMED_ORGANISATIONS, Reach, reach_of
from deltaworks.mutations.planning import resolving
from deltaworks.mutations.pointers import local_checkpoint
from deltaworks.mutations.resolve import INTERVAL_SCHEMA, resolve
from deltaworks.mutations.scope import Scope, scope_of
from deltaworks.specs.mutation import MUTATION_COLUMN, ORG_COLUMN, REQUEST_COLUMNS
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import TableSpec
from deltaworks.tables.lake import Lake


@dataclass(frozen=True, slots=True)
class Work:
    """What a batch does to one table, materialised."""

    stretches: DataFrame
    reach: Reach


class BatchFrames:
    """The frames of one batch, each made once. They are the same however often a batch is begun, up to its end.

    Requests are read at the version the batch fixed. Rows that arrived are read as the table is now: those that came
    since do no harm, and are looked at again by the next batch. What is used more than once is kept on the executors,
    where a merge of the table it was made from leaves it alone; a lost executor fails the batch, which is repeated.
    """

    def __init__(self, session: SparkSession, lake: Lake, spec: PipelineSpec, batch: MutationBatch) -> None:
        self._session = session
        self._lake = lake
        self._spec = spec
        self._batch = batch
        self._declared = declared_mutations(spec)
        self.came = self._arrivals(batch.requests)
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
        """The rows of a table as it is now."""
        return self._session.read.format("delta").load(self._lake.storage.spark_uri(self._key(table)))

    def new_requests(self) -> DataFrame:
        """The requests of the batch's own span."""
        spec = self._spec.table(self._batch.requests.table)
        return self._requests(self.scope, condition=self.came.condition(spec.column_types()) if self.came else "false")

    def work(self, table: TableSpec) -> Work:
        """What the batch does to a mutable table."""
        if self._batch.everything:
            stretches = whole_cover(self.resolved, self._touched_before(table))
        elif not self._with_intervals:
            # Every interval is new, so that no row is in one which is not looked at anyway.
            stretches = joined(self.changed, late_stretches(self._arrived(table).limit(0), self.resolved))
        else:
            stretches = joined(self.changed, late_stretches(self._arrived(table), self._current()))
        kept = local_checkpoint(stretches)
        return Work(kept, reach_of(kept))

    def _key(self, table: str) -> str:
        return paths.table(self._spec.pipeline, table)

    def _arrivals(self, span: Span) -> Arrivals:
        if span.empty:
            return Arrivals()
        return arrivals(self._lake, self._key(span.table), after=span.after, up_to=span.up_to)

    def _scope(self) -> Scope:
        if self._batch.organisation is not None:
            return scopes.one(self._batch.organisation)
        if self._batch.everything:
            return scopes.everything()
        types = self._spec.table(self._batch.requests.table).column_types()
        return scope_of(self._all_requests(), self.came, self.came.condition(types))

    def _all_requests(self) -> DataFrame:
        span = self._batch.requests
        uri = self._lake.storage.spark_uri(self._key(span.table))
        try:
            return self._session.read.format("delta").option("versionAsOf", span.up_to).load(uri)
        except Exception as error:
            raise _bounds_gone(self._batch, error) from error

    def _requests(self, scope: Scope, *, condition: str = "true") -> DataFrame:
        """Requests as `resolve` takes them, with the name they may give."""
        columns = [F.col(name) for name in REQUEST_COLUMNS]
        return scope.within(self._all_requests()).where(condition).select(*columns, F.col("event_time").alias("time"))

    def _stored(self) -> DataFrame:
        """The intervals as the last batch left them. They are written last, and stay as they are until then."""
        name = self._declared.intervals
        if self._lake.open(self._key(name)) is None:
            return self._session.createDataFrame([], INTERVAL_SCHEMA)
        return self.rows(name)

    def _current(self) -> DataFrame:
        """The intervals as they are with this batch, of all organisations."""
        return self.scope.outside(self.stored).unionByName(self.resolved)

    def _arrived(self, table: TableSpec) -> DataFrame:
        """Organisation, id and time of rows that came since the last batch."""
        assert table.mutable is not None
        span = next((each for each in self._batch.tables if each.table == table.name), None)
        rows = self.rows(table.name)
        came = Arrivals() if span is None else self._arrivals(span)
        if not came:
            rows = rows.limit(0)
        elif self._batch.organisation is not None:
            rows = rows.where(F.col(ORG_COLUMN) == self._batch.organisation)
        elif self.scope.names is not None:
            # Nowhere else is there an interval a row could fall into.
            rows = _within(rows, self._with_intervals | set(self.scope.names))
        found = rows.where(came.condition(table.column_types()))
        return found.select(ORG_COLUMN, F.col(table.mutable.origin).alias("id"), F.col("event_time").alias("time"))

    def _organisations_of(self, kept: str) -> set[str]:
        """The organisations that have rows in one of the tables mutations keep, from its log."""
        places = files_by_partition(self._lake, self._key(kept))
        return {str(dict(place)[ORG_COLUMN]) for place in places}

    def may_have_names(self) -> bool:
        """Whether an organisation the batch looks at has names already."""
        known = self._organisations_of(self._declared.names)
        return bool(known) if self.scope.names is None else not known.isdisjoint(self.scope.names)

    def _touched_before(self, table: TableSpec) -> DataFrame:
        assert table.mutable is not None
        touched = self.scope.within(self.rows(table.name)).where(F.col(MUTATION_COLUMN).isNotNull())
        return touched.select(ORG_COLUMN, F.col(table.mutable.origin).alias("id")).distinct()


def _within(rows: DataFrame, organisations: set[str]) -> DataFrame:
    few = len(organisations) <= NAMED_ORGANISATIONS
    return rows.where(F.col(ORG_COLUMN).isin(*sorted(organisations))) if few else rows


def _bounds_gone(batch: MutationBatch, error: Exception) -> Exception:
    own = as_deltaworks_error(error)
    if own.condition != "JOB_FAILED":
        return own
    return ContractError(
        "MUTATION_BOUNDS_GONE",
        f"Mutation batch {batch.number} of {batch.pipeline!r} reads {batch.requests.table!r} at version "
        f"{batch.requests.up_to}, which is not there any more: {own.message}",
        hint=f"`deltaworks mutations run {batch.pipeline} --everything --no-dry-run` gives it up and compares all rows "
        "with all requests anew.",
    )
