"""Plans mutation batches: the table versions that the next batch covers, and the backlog. Needs no JVM.

New rows between two versions are counted from the Delta log, by version and not by ingest batch. Held tables, replays
from quarantine and reprocesses can add rows of old batches later.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field

from deltaworks import __version__
from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.job import as_deltaworks_error
from deltaworks.control.objects import ObjectStore
from deltaworks.control.provenance import OPERATIONS_WITHOUT_NEW_ROWS, current_run, parse_user_metadata
from deltaworks.control.records.mutation import MutationBatch, VersionRange
from deltaworks.errors import ConfigError, ContractError
from deltaworks.specs.mutation import MutableSpec, MutationsSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import TableSpec
from deltaworks.tables.changes import Partition, partition_predicate
from deltaworks.tables.file_workers import with_row_counts
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import (
    Action,
    commit_info_of,
    committed_at,
    data_change_actions,
    read_commits,
    row_count,
    stats_of,
)

#: Column whose bounds separate new rows from earlier ones.
BATCH_COLUMN = "_batch_id"
#: Maximum number of partitions listed in a predicate.
MAX_LISTED_PARTITIONS = 500


@dataclass(frozen=True, slots=True)
class Arrivals:
    """New rows of a table. All of them match `condition`, and some older rows may match too.

    If no narrower condition is known, `is_unbounded` is set; if rows were also removed, `has_removals`. The commit time
    of the first new rows is `first_at`.
    """

    rows: int = 0
    is_unbounded: bool = False
    has_removals: bool = False
    first_at: dt.datetime | None = None
    partitions: frozenset[Partition] = field(default_factory=frozenset)
    first_batch: int | None = None

    def __bool__(self) -> bool:
        return self.is_unbounded or self.has_removals or bool(self.partitions)

    def condition(self, types: Mapping[str, str]) -> str:
        """Returns the condition as SQL over the table's columns."""
        if self.is_unbounded:
            return "true"
        conditions = [] if self.first_batch is None else [f"`{BATCH_COLUMN}` >= {self.first_batch}"]
        if 0 < len(self.partitions) <= MAX_LISTED_PARTITIONS:
            conditions.append(f"({partition_predicate(self.partitions, types)})")
        return " AND ".join(conditions) or "true"


def read_arrivals(lake: Lake, key: str, *, after: int, up_to: int) -> Arrivals:
    """Returns the rows added after version `after`, up to and including `up_to`. Reads one log entry per commit.

    Skips commits of mutations, OPTIMIZE and purges, which only rewrite existing rows.
    """
    counter = _ArrivalCounter(lake, key)
    for _, actions in read_commits(lake, key, range(after + 1, up_to + 1)):
        if actions is None:
            return Arrivals(is_unbounded=True, rows=counter.rows, first_at=counter.first_at, has_removals=True)
        counter.add(actions)
    return counter.arrivals()


def last_version_within(lake: Lake, key: str, *, after: int, up_to: int, max_rows: int) -> int:
    """Returns the newest version up to `up_to` that adds at most `max_rows` rows. Includes at least one commit."""
    rows = 0
    for version, actions in read_commits(lake, key, range(after + 1, up_to + 1)):
        commit = _ArrivalCounter(lake, key)
        commit.add(actions or [])
        added = max_rows if commit.has_unknown_rows else commit.rows
        if rows and rows + added > max_rows:
            return version - 1
        rows += added
    return up_to


class _ArrivalCounter:
    """Accumulates counts and bounds of the new rows of commits. Rows that statistics do not count are counted in the
    files, unless these are gone: then `has_unknown_rows` is set.
    """

    def __init__(self, lake: Lake, key: str) -> None:
        self._lake, self._key = lake, key
        self.rows = 0
        self.has_removals = self.has_unknown_batches = self.has_unknown_rows = False
        self.first_at: dt.datetime | None = None
        self.partitions: set[Partition] = set()
        self.batches: list[int] = []

    def add(self, actions: list[Action]) -> None:
        commit_info = commit_info_of(actions)
        if parse_user_metadata(commit_info.get("userMetadata")).get("operation") in OPERATIONS_WITHOUT_NEW_ROWS:
            return
        changing = list(data_change_actions(actions))
        for action in changing:
            self._add_file(action)
        if changing and self.first_at is None:
            written = max((int(action.get("modificationTime") or 0) for action in changing), default=0)
            self.first_at = committed_at(commit_info) or dt.datetime.fromtimestamp(written / 1000, tz=dt.UTC)

    def _add_file(self, action: Action) -> None:
        if "modificationTime" not in action:
            self.has_removals = True
            return
        stats = stats_of(action)
        (counted,) = with_row_counts(self._lake, self._key, [action])
        self.rows += row_count(counted) or 0
        self.has_unknown_rows |= row_count(counted) is None
        self.partitions.add(tuple(sorted((action.get("partitionValues") or {}).items())))
        min_batch = (stats.get("minValues") or {}).get(BATCH_COLUMN)
        if min_batch is None:
            self.has_unknown_batches = True
        else:
            self.batches.append(int(min_batch))

    def arrivals(self) -> Arrivals:
        return Arrivals(
            rows=self.rows,
            has_removals=self.has_removals,
            first_at=self.first_at,
            partitions=frozenset(self.partitions),
            first_batch=None if self.has_unknown_batches or not self.batches else min(self.batches),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Requests that no completed batch covers: their number, and the commit time of the oldest one."""

    pipeline: str
    requests: int
    oldest_at: dt.datetime | None

    def age_seconds(self, now: dt.datetime) -> float:
        """Age of the oldest pending request in seconds; 0 if none is pending."""
        return 0.0 if self.oldest_at is None else max(0.0, (now - self.oldest_at).total_seconds())


def mutations_spec(spec: PipelineSpec) -> MutationsSpec:
    """Returns the `mutations` section of a pipeline.

    Raises:
        ConfigError: MUTATIONS_UNDECLARED.
    """
    if spec.mutations is None:
        raise ConfigError(
            "MUTATIONS_UNDECLARED",
            f"Pipeline {spec.pipeline!r} declares no mutations: its rows do not change.",
            hint="Declare `mutations` in its pipeline.yaml, or name another pipeline.",
        )
    return spec.mutations


def mutable_spec(table: TableSpec) -> MutableSpec:
    """Returns the `mutable` section of a table: the columns that requests change.

    Raises:
        ConfigError: MUTATIONS_UNDECLARED.
    """
    if table.mutable is None:
        raise ConfigError(
            "MUTATIONS_UNDECLARED",
            f"Table {table.name!r} is not declared mutable: its rows do not change.",
            hint="Declare `mutable` for the table in its pipeline.yaml, or name another table.",
        )
    return table.mutable


def mutable_tables(spec: PipelineSpec) -> list[TableSpec]:
    """Returns the tables that requests change."""
    return [table for table in spec.tables if table.mutable is not None]


class BatchPlanner:
    """Plans batches from the Delta logs of a pipeline's tables. Not thread-safe."""

    def __init__(self, lake: Lake, objects: ObjectStore, spec: PipelineSpec) -> None:
        self._lake = lake
        self._home = PipelineHome(objects, spec.pipeline)
        self._spec = spec
        self._mutations_spec = mutations_spec(spec)
        self._batches = PipelineHome(objects, spec.pipeline).mutations

    def current_versions(self) -> dict[str, int]:
        """Returns the current version of each input table; -1 if the table does not exist."""
        tables = {name: self._lake.open(paths.table(self._spec.pipeline, name)) for name in self._input_tables()}
        return {name: -1 if table is None else table.version() for name, table in tables.items()}

    def plan_batch(
        self,
        number: int,
        *,
        organisation: str | None = None,
        everything: bool = False,
        max_versions: Mapping[str, int] | None = None,
    ) -> MutationBatch | None:
        """Returns the plan of batch `number`, or None if no rows arrived since the last batch.

        Args:
            max_versions: versions from `current_versions` that the batch must not exceed; by default the current ones.
        """
        generation = self._home.generations.current()
        last_batch = self._batches.last_full_batch()
        if last_batch is None or last_batch.generation != generation:
            last_batch, everything = None, everything or number > 1
        covered = {} if last_batch is None else {span.table: span for span in (last_batch.requests, *last_batch.tables)}
        everything = everything or any(self._was_recreated(span) for span in covered.values())
        previous = {} if everything else covered
        max_versions = self.current_versions() if max_versions is None else max_versions
        max_requests = None if everything else self._mutations_spec.max_requests
        spans = [
            self._version_range(name, previous.get(name), max_version=max_versions[name], max_requests=max_requests)
            for name in self._input_tables()
        ]
        requests, *tables = spans
        is_forced = everything or organisation is not None
        if requests.up_to < 0 or not (is_forced or any(self._has_arrivals(span) for span in spans)):
            return None
        return MutationBatch(
            pipeline=self._spec.pipeline,
            number=number,
            generation=generation,
            requests=requests,
            tables=tuple(tables),
            run=current_run(),
            at=iso_now(),
            spec_fingerprint=self._spec.fingerprint(),
            code_version=__version__,
            organisation=organisation,
            everything=everything,
        )

    def backlog(self) -> Backlog:
        """Returns the pending requests. Reads one log entry per commit since the last batch."""
        last_batch = self._batches.last_full_batch()
        key = paths.table(self._spec.pipeline, self._mutations_spec.requests)
        table = self._lake.open(key)
        if table is None:
            return Backlog(pipeline=self._spec.pipeline, requests=0, oldest_at=None)
        is_same_table = last_batch is not None and last_batch.requests.table_id == str(table.metadata().id)
        after = last_batch.requests.up_to if last_batch is not None and is_same_table else -1
        arrivals = read_arrivals(self._lake, key, after=after, up_to=table.version())
        return Backlog(pipeline=self._spec.pipeline, requests=arrivals.rows, oldest_at=arrivals.first_at)

    def _input_tables(self) -> tuple[str, ...]:
        return (self._mutations_spec.requests, *(table.name for table in mutable_tables(self._spec)))

    def _has_arrivals(self, span: VersionRange) -> bool:
        """Returns whether rows arrived, ignoring commits of mutations and maintenance."""
        if span.is_empty:
            return False
        key = paths.table(self._spec.pipeline, span.table)
        return bool(read_arrivals(self._lake, key, after=span.after, up_to=span.up_to))

    def _was_recreated(self, span: VersionRange) -> bool:
        """Returns whether the table was recreated or removed after a batch read it."""
        table = self._lake.open(paths.table(self._spec.pipeline, span.table))
        return span.table_id != "" and (table is None or str(table.metadata().id) != span.table_id)

    def _version_range(
        self, name: str, previous: VersionRange | None, *, max_version: int, max_requests: int | None
    ) -> VersionRange:
        key = paths.table(self._spec.pipeline, name)
        table = self._lake.open(key)
        if table is None:
            return VersionRange(table=name, table_id="", after=-1, up_to=-1)
        after = -1 if previous is None else previous.up_to
        table_id, up_to = str(table.metadata().id), max(after, min(max_version, table.version()))
        if name == self._mutations_spec.requests and max_requests is not None:
            up_to = last_version_within(self._lake, key, after=after, up_to=up_to, max_rows=max_requests)
        return VersionRange(table=name, table_id=table_id, after=after, up_to=up_to)


def bounds_unavailable(batch: MutationBatch, error: Exception) -> Exception:
    """Returns the error to raise if the requests of a batch cannot be read at their recorded version."""
    mapped = as_deltaworks_error(error)
    # A missing file is most likely one of an old version, which VACUUM has deleted.
    if mapped.condition not in ("JOB_FAILED", "DATA_FILE_MISSING"):
        return mapped
    return ContractError(
        "MUTATION_BOUNDS_UNAVAILABLE",
        f"Mutation batch {batch.number} of {batch.pipeline!r} reads {batch.requests.table!r} at version "
        f"{batch.requests.up_to}, which no longer exists: {mapped.message}",
        hint=f"`deltaworks mutations run {batch.pipeline} --everything --no-dry-run` abandons it and compares all rows "
        "with all requests again.",
    )
