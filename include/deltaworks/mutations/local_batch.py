"""Applies a mutation batch of few requests in this process, without Spark.

A Spark job of a few hundred requests takes a minute of processor time to start a JVM and to compile its queries, and
less than a second for the merge. Here the requests of the affected organisations are resolved in Python
(`local_resolve`), rows are merged by delta-rs (`small_merge`), the files of changed organisations in the state tables
are replaced, and the mapping from ids to names is computed (see `state_tables`). The results equal Spark's; a batch
that this process cannot apply in the same way raises `SparkRequiredError`, and Spark applies it.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from deltaworks.control import paths
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.records.mutation import MutationBatch, VersionRange
from deltaworks.maintenance.table_health.measure import file_sizes_by_partition
from deltaworks.mutations.batch_engine import MergeFunction, PlannedChanges
from deltaworks.mutations.bounds import (
    MAX_LISTED_PARTITIONS,
    Arrivals,
    bounds_unavailable,
    mutable_spec,
    mutations_spec,
    read_arrivals,
)
from deltaworks.mutations.commits import StepCommits
from deltaworks.mutations.entity_sizes import LargestEntity, large_entities_locally
from deltaworks.mutations.local_periods import (
    affected_range,
    changed_periods,
    late_row_periods,
    merge_periods,
    moment,
)
from deltaworks.mutations.local_resolve import Interval, RequestRow, resolve_locally
from deltaworks.mutations.local_rows import (
    intervals_from_arrow,
    intervals_to_arrow,
    merge_source,
    notification_rows,
    requests_from_arrow,
)
from deltaworks.mutations.small_merge import (
    MAX_LISTED_ORGANISATIONS,
    SOURCE,
    TARGET,
    AffectedRange,
    SmallMerge,
    plan_merge,
)
from deltaworks.mutations.state_tables import RENAME_NAME, AssignedName, IdMapping, NameRequest
from deltaworks.specs.mutation import (
    DELETED_COLUMN,
    INTERVALS_COLUMNS,
    MOVE_OPERATIONS,
    MUTATION_COLUMN,
    NAMES_COLUMNS,
    ORG_COLUMN,
    REQUEST_COLUMNS,
)
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import TableSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.duckdb_session import duckdb_session
from deltaworks.tables.lake import Lake, dataset_of, rows_of
from deltaworks.tables.log import TableState
from deltaworks.tables.rewrite import DataFiles, Rewrite, SparkRequiredError


def names_after(requests: Iterable[RequestRow], *, rule: str) -> dict[str, dict[str, AssignedName]]:
    """Returns the names by id after all requests, for each organisation with names; as `resolve_names` does."""
    by_organisation: dict[str, list[RequestRow]] = defaultdict(list)
    named: set[str] = set()
    for request in requests:
        if request.is_valid and request.op in (RENAME_NAME, *MOVE_OPERATIONS):
            by_organisation[request.org_id].append(request)
            if request.op == RENAME_NAME and request.name is not None:
                named.add(request.org_id)
    return {
        organisation: IdMapping(rule).replay(map(_name_request, by_organisation[organisation]))
        for organisation in sorted(named)
    }


def _name_request(request: RequestRow) -> NameRequest:
    return NameRequest(request.op, request.id, request.new_id, request.name, moment(request.time), request.seq)


def changed_names(
    organisation: str, stored: pa.Table, names: Mapping[str, AssignedName], *, batch: int
) -> pa.Table | None:
    """Returns the rows of an organisation in the mapping table after a batch; None if nothing changes.

    Names that no longer exist stay as deleted rows. Only changed rows get the number of the batch.
    """
    rows = {row["id"]: row for row in stored.to_pylist()}
    changed = False
    for name_id in {*rows, *names}:
        row, assigned = rows.get(name_id), names.get(name_id)
        if assigned is None:
            if row is not None and not row[DELETED_COLUMN]:
                rows[name_id] = {**row, DELETED_COLUMN: True, MUTATION_COLUMN: batch}
                changed = True
            continue
        has_seq, seq = assigned.sequence_order
        values = {"name": assigned.name, "named_at": assigned.time, "seq": seq if has_seq else None}
        is_same = row is not None and not row[DELETED_COLUMN] and all(row[key] == values[key] for key in values)
        if not is_same:
            key = {ORG_COLUMN: organisation, "id": name_id}
            rows[name_id] = {**key, **values, DELETED_COLUMN: False, MUTATION_COLUMN: batch}
            changed = True
    if not changed:
        return None
    return pa.Table.from_pylist([rows[name_id] for name_id in sorted(rows)], schema=arrow_schema(NAMES_COLUMNS))


#: Maximum size of a table of requests, intervals or names that this process reads.
MAX_STATE_BYTES: Final = 64 << 20
#: Maximum number of rows of a mutable table that arrived since the last batch, whose key and time are read.
MAX_ARRIVED_ROWS: Final = 2_000_000
_BATCH_COLUMN = "_batch_id"


def reasons_for_spark(lake: Lake, spec: PipelineSpec, batch: MutationBatch) -> list[str]:
    """Returns why only Spark can apply a batch, as far as the tables' logs show; empty if this process may try."""
    declared = mutations_spec(spec)
    if not declared.small_batch_requests:
        return ["`small_batch_requests` is 0"]
    if batch.everything:
        return ["all rows are compared with all requests"]
    reasons = []
    for name in (declared.requests, declared.intervals, declared.names):
        sizes = file_sizes_by_partition(lake, paths.table(spec.pipeline, name))
        if (total := sum(map(sum, sizes.values()))) > MAX_STATE_BYTES:
            reasons.append(f"table {name} has {total:,} bytes, more than {MAX_STATE_BYTES:,}")
    return reasons


@dataclass(frozen=True, slots=True)
class _Changes:
    """The periods that a batch changes in one table, as the source of a merge."""

    source: pa.Table
    affected: AffectedRange


class LocalBatch:
    """One batch as rows in this process. The constructor resolves its requests.

    Requests are read at the recorded version, rows of the data tables from the current one, as in `BatchFrames`.

    Raises:
        SparkRequiredError: the batch is too large, or this process cannot apply it like Spark.
        ContractError: MUTATION_BOUNDS_UNAVAILABLE.
    """

    name: Final = "process"

    def __init__(self, lake: Lake, spec: PipelineSpec, batch: MutationBatch, commits: StepCommits) -> None:
        self._lake = lake
        self._spec = spec
        self._batch = batch
        self._mutations_spec = mutations_spec(spec)
        self.commits = commits
        arrivals = self._read_arrivals(batch.requests)
        requests = self._read_requests()
        arrived = _arrived(requests, arrivals, self._partition_by(batch.requests.table))
        self._organisations = self._scope(arrivals, arrived)
        in_scope = pa.array(self._organisations, pa.string())
        arrived, requests = (rows.filter(pc.is_in(rows.column(ORG_COLUMN), in_scope)) for rows in (arrived, requests))
        if requests.num_rows > self._mutations_spec.small_batch_requests:
            raise SparkRequiredError(
                f"{requests.num_rows:,} requests of the affected organisations are more than "
                f"{self._mutations_spec.small_batch_requests:,} (`small_batch_requests`)"
            )
        self._new_requests = requests_from_arrow(arrived)
        self._requests = requests_from_arrow(requests)
        self._stored = self._read_intervals(self._organisations)
        self._resolved = resolve_locally(self._requests)
        self._changed = changed_periods(self._stored, self._resolved)

    @property
    def request_count(self) -> int:
        """The number of requests of the organisations in scope."""
        return len(self._requests)

    def request_counts(self) -> dict[str, int]:
        """Returns the number of new requests by operation. Invalid requests are counted under an empty name."""
        counts: dict[str, int] = {}
        for request in self._new_requests:
            operation = request.op if request.is_valid else ""
            counts[operation] = counts.get(operation, 0) + 1
        return counts

    @property
    def requests(self) -> Sequence[RequestRow]:
        """The requests of the organisations in scope."""
        return self._requests

    @property
    def intervals(self) -> Sequence[Interval]:
        """The resolved intervals of the organisations in scope."""
        return self._resolved

    def table_changes(self, table: TableSpec) -> PlannedChanges:
        """Returns the changes to a mutable table.

        A value that Spark might not be able to parse raises, so none is invalid.
        """
        changes = self._changes(table)
        return PlannedChanges(
            affected=changes.affected, invalid_values=0, plan=lambda: self._plan_merge(table, changes)
        )

    def _changes(self, table: TableSpec) -> _Changes:
        late = late_row_periods(*self._late_rows(table)) if self._organisations_with_intervals else []
        periods = merge_periods(self._changed, late)
        return _Changes(merge_source(table, periods), affected_range(periods))

    def matching_files(self, table: TableSpec) -> Iterator[tuple[str, str, int]]:
        """Yields path, partition and number of changed rows of each file that the merge into a table would rewrite."""
        changes = self._changes(table)
        if not changes.affected.periods:
            return
        self._plan_merge(table, changes)
        opened = self._lake.open(paths.table(self._spec.pipeline, table.name))
        assert opened is not None
        condition = SmallMerge(table, changes.source, changes.affected, batch=self._batch.number).match_condition()
        mutable, dataset = mutable_spec(table), dataset_of(self._lake, opened)
        columns = [ORG_COLUMN, mutable.id, mutable.origin, "event_time", DELETED_COLUMN]
        columns += [name for pair in mutable.fields.items() for name in pair]
        in_scope = None if changes.affected.organisations is None else list(changes.affected.organisations)
        with duckdb_session() as connection:
            connection.register(SOURCE, changes.source)
            files = dataset.get_fragments(filter=None if in_scope is None else ds.field(ORG_COLUMN).isin(in_scope))
            for file in files:
                connection.register(TARGET, file.to_table(schema=dataset.schema, columns=list(dict.fromkeys(columns))))
                query = f"SELECT count(*) FROM {TARGET}, {SOURCE} WHERE {condition}"
                (rows,) = connection.execute(query).fetchall()[0]
                if rows:
                    yield file.path, str(file.partition_expression), int(rows)

    def _plan_merge(self, table: TableSpec, changes: _Changes) -> MergeFunction:
        key = paths.table(self._spec.pipeline, table.name)
        max_bytes = self._mutations_spec.small_merge_bytes
        plan = plan_merge(self._lake, key, table, changes.affected, small_merge_bytes=max_bytes)
        if plan.engine != "delta_rs":
            raise SparkRequiredError(f"{table.name}: {'; '.join(plan.reasons)}")
        merge = SmallMerge(table, changes.source, changes.affected, batch=self._batch.number)
        return lambda check: self.commits.commit_once_with_delta_rs(table.name, merge.execute, check=check)

    def notify(self, table: TableSpec, notification_table: TableSpec, *, key: str, version: int) -> None:
        """Commits the notifications of the rows that the batch changed in `table`."""
        mutable, copied = mutable_spec(table), [column.name for column in notification_table.columns]
        columns = {ORG_COLUMN, mutable.id, mutable.origin, "event_time", DELETED_COLUMN, key, *copied}
        changed = self._rows(table.name, sorted(columns), ds.field(MUTATION_COLUMN) == self._batch.number)
        rows = notification_rows(
            changed,
            self._changed,
            data_table=table,
            notification_table=notification_table,
            key=key,
            batch=self._batch.number,
            at=parse_iso(self._batch.at) or utc_now(),
            data_version=version,
        )
        self.commits.append_once(notification_table.name, rows)

    def update_names(self, *, has_new_names: bool) -> None:
        """Commits the changes of the mapping from ids to names: replaces the files of organisations with changes."""
        name = self._mutations_spec.names
        if not has_new_names and not self._organisations_of(name).intersection(self._organisations):
            return
        if self.commits.has_committed(name):
            return
        after = names_after(self._requests, rule=self._mutations_spec.merge_names)

        def changed(organisation: str, stored: pa.Table) -> pa.Table | None:
            return changed_names(organisation, stored, after.get(organisation, {}), batch=self._batch.number)

        self.commits.rewrite_once(name, self._replace_organisations(changed))

    def update_intervals(self) -> None:
        """Commits the changes of the stored intervals: replaces the files of organisations with changes."""
        name = self._mutations_spec.intervals
        if self.commits.has_committed(name):
            return
        resolved = _by_organisation(self._resolved)

        def changed(organisation: str, stored: pa.Table) -> pa.Table | None:
            intervals = resolved.get(organisation, [])
            same = _as_set(intervals_from_arrow(stored)) == _as_set(intervals)
            return None if same else intervals_to_arrow(intervals)

        self.commits.rewrite_once(name, self._replace_organisations(changed))

    def large_entities(self, *, limit: int) -> list[LargestEntity]:
        """Returns the largest entity of every organisation that has one of more than `limit` ids."""
        return large_entities_locally(self._resolved, limit=limit)

    def organisations_in_scope(self, organisations: set[str]) -> set[str]:
        """Returns those of the organisations that the batch covers."""
        return organisations.intersection(self._organisations)

    def _replace_organisations(
        self, changed: Callable[[str, pa.Table], pa.Table | None]
    ) -> Callable[[TableState, DataFiles], Rewrite | None]:
        """Returns a rewrite of a state table, which is partitioned by organisation.

        Args:
            changed: returns the new rows of an organisation; None if they do not change.
        """

        def rewrite(state: TableState, files: DataFiles) -> Rewrite | None:
            present: dict[str, list[dict[str, Any]]] = {}
            for added in state.files.values():
                organisation = (added.get("partitionValues") or {}).get(ORG_COLUMN)
                if organisation is not None:
                    present.setdefault(organisation, []).append(added)
            removed, written = [], []
            for organisation in self._organisations:
                old = present.get(organisation, [])
                stored = pa.concat_tables([files.columns.empty_table(), *map(files.read_declared, old)])
                column = pa.array([organisation] * stored.num_rows, pa.string())
                rows = changed(organisation, stored.append_column(ORG_COLUMN, column))
                if rows is not None:
                    removed += old
                    written += files.write({ORG_COLUMN: organisation}, rows.to_batches())
            return Rewrite(removed=removed, added=written) if removed or written else None

        return rewrite

    def _scope(self, arrivals: Arrivals, arrived: pa.Table) -> tuple[str, ...]:
        """Returns the organisations of new requests."""
        if self._batch.organisation is not None:
            return (self._batch.organisation,)
        if arrivals.is_unbounded or arrivals.has_removals:
            raise SparkRequiredError("requests were removed, so that their organisations are unknown")
        organisations = pc.unique(arrived.column(ORG_COLUMN)).drop_null().to_pylist()
        if len(organisations) > MAX_LISTED_ORGANISATIONS:
            raise SparkRequiredError(
                f"requests of {len(organisations):,} organisations are more than {MAX_LISTED_ORGANISATIONS:,}"
            )
        if "" in organisations:
            raise SparkRequiredError("an organisation is an empty text, which Delta's partitions do not distinguish")
        return tuple(sorted(organisations))

    def _late_rows(self, table: TableSpec) -> tuple[pa.Table, Sequence[Interval]]:
        """Returns organisation, id and time of rows that arrived since the last batch, and their intervals."""
        span = next((span for span in self._batch.tables if span.table == table.name), None)
        arrivals = Arrivals() if span is None else self._read_arrivals(span)
        origin = mutable_spec(table).origin
        if arrivals.is_unbounded or arrivals.rows > MAX_ARRIVED_ROWS or (arrivals and arrivals.first_batch is None):
            raise SparkRequiredError(f"{table.name}: the arrived rows are unknown, or more than {MAX_ARRIVED_ROWS:,}")
        columns = (ORG_COLUMN, origin, "event_time")
        if not arrivals:
            return pa.table({"org_id": [], "id": [], "time": []}), ()
        organisations = (
            {self._batch.organisation}
            if self._batch.organisation is not None
            else self._organisations_with_intervals | set(self._organisations)
        )
        condition = (ds.field(_BATCH_COLUMN) >= arrivals.first_batch) & ds.field(ORG_COLUMN).isin(sorted(organisations))
        rows = self._rows(table.name, columns, condition).rename_columns(["org_id", "id", "time"])
        others = set(pc.unique(rows.column("org_id")).to_pylist()) - set(self._organisations)
        return rows, [*self._read_intervals(sorted(others)), *self._resolved]

    def _rows(self, table: str, columns: Sequence[str], condition: pc.Expression) -> pa.Table:
        opened = self._lake.open(paths.table(self._spec.pipeline, table))
        assert opened is not None
        return rows_of(self._lake, opened, columns=columns, filters=condition)

    def _read_arrivals(self, span: VersionRange) -> Arrivals:
        if span.is_empty:
            return Arrivals()
        key = paths.table(self._spec.pipeline, span.table)
        return read_arrivals(self._lake, key, after=span.after, up_to=span.up_to)

    def _read_requests(self) -> pa.Table:
        span = self._batch.requests
        columns = [*REQUEST_COLUMNS, "event_time", _BATCH_COLUMN, *self._partition_by(span.table)]
        opened = self._lake.open(paths.table(self._spec.pipeline, span.table))
        if opened is None:
            raise SparkRequiredError(f"table {span.table} does not exist")
        try:
            if opened.version() != span.up_to:
                opened.load_as_version(span.up_to)
            return rows_of(self._lake, opened, columns=list(dict.fromkeys(columns)))
        except Exception as error:
            raise bounds_unavailable(self._batch, error) from error

    def _partition_by(self, table: str) -> tuple[str, ...]:
        return tuple(self._spec.table(table).partition_by)

    def _read_intervals(self, organisations: Collection[str]) -> list[Interval]:
        opened = self._lake.open(paths.table(self._spec.pipeline, self._mutations_spec.intervals))
        if opened is None or not organisations:
            return []
        condition = ds.field(ORG_COLUMN).isin(list(organisations))
        return intervals_from_arrow(rows_of(self._lake, opened, columns=list(INTERVALS_COLUMNS), filters=condition))

    @cached_property
    def _organisations_with_intervals(self) -> set[str]:
        return self._organisations_of(self._mutations_spec.intervals)

    def _organisations_of(self, table: str) -> set[str]:
        """Returns the organisations with rows in a state table, according to its log."""
        partitions = file_sizes_by_partition(self._lake, paths.table(self._spec.pipeline, table))
        return {str(dict(partition)[ORG_COLUMN]) for partition in partitions}


def _arrived(requests: pa.Table, arrivals: Arrivals, partition_by: Sequence[str]) -> pa.Table:
    """Returns the requests that match `arrivals.condition`."""
    if arrivals.first_batch is not None:
        requests = requests.filter(pc.greater_equal(requests.column(_BATCH_COLUMN), arrivals.first_batch))
    if not 0 < len(arrivals.partitions) <= MAX_LISTED_PARTITIONS:
        return requests if arrivals else requests.slice(0, 0)
    names = sorted(partition_by)
    rows = zip(*(requests.column(name).to_pylist() for name in names), strict=True) if names else ()
    if not names:
        return requests
    mask = [tuple(zip(names, map(_partition_text, row), strict=True)) in arrivals.partitions for row in rows]
    return requests.filter(pa.array(mask, pa.bool_()))


def _partition_text(value: Any) -> str | None:
    """Returns a partition value as Delta's log writes it."""
    if value is None or value == "":
        # Delta's log has no empty texts.
        return None
    if isinstance(value, str | int | dt.date) and not isinstance(value, bool | dt.datetime):
        return str(value)
    raise SparkRequiredError(f"requests are partitioned by values like {value!r}")


def _by_organisation(intervals: Iterable[Interval]) -> dict[str, list[Interval]]:
    grouped: dict[str, list[Interval]] = {}
    for interval in intervals:
        grouped.setdefault(interval.org_id, []).append(interval)
    return grouped


def _as_set(intervals: Iterable[Interval]) -> set[tuple[Any, ...]]:
    """Returns intervals as comparable values."""
    return {
        (
            *(getattr(interval, name) for name in INTERVALS_COLUMNS if name != "fields"),
            frozenset(interval.fields.items()),
        )
        for interval in intervals
    }
