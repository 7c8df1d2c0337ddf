"""The bounds of mutation batches: the requests and rows the next one covers, and the backlog. Needs no JVM.

Rows that arrived between two versions of a table are counted from its log, by version and not by the batch they were
landed in: a table that was held, a replay of quarantined rows and a reprocess add rows of old batches late.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deltaworks import __version__
from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore
from deltaworks.control.provenance import OPERATIONS_WITHOUT_NEW_ROWS, current_run, parse_user_metadata
from deltaworks.control.records.mutation import MutationBatch, VersionRange
from deltaworks.errors import ConfigError
from deltaworks.specs.mutation import MutableSpec, MutationsSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import TableSpec
from deltaworks.tables.changes import Partition, partition_predicate
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import Action, data_change_actions, read_commits

#: The column that separates new rows from those that were there before.
BATCH_COLUMN = "_batch_id"
#: The most partitions that a condition lists.
NAMED_PARTITIONS = 500


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Rows that arrived. All of them meet `condition`, and perhaps some older ones.

    `everything` means that no narrower condition is possible, `removed` that rows were removed too. `first_at` is when
    the first of them were committed.
    """

    rows: int = 0
    everything: bool = False
    removed: bool = False
    first_at: dt.datetime | None = None
    partitions: frozenset[Partition] = field(default_factory=frozenset)
    first_batch: int | None = None

    def __bool__(self) -> bool:
        return self.everything or self.removed or bool(self.partitions)

    def condition(self, types: Mapping[str, str]) -> str:
        """The condition as SQL over the table's columns."""
        if self.everything:
            return "true"
        conditions = [] if self.first_batch is None else [f"`{BATCH_COLUMN}` >= {self.first_batch}"]
        if 0 < len(self.partitions) <= NAMED_PARTITIONS:
            conditions.append(f"({partition_predicate(self.partitions, types)})")
        return " AND ".join(conditions) or "true"


def arrivals(lake: Lake, key: str, *, after: int, up_to: int) -> Arrivals:
    """The rows that arrived after version `after` and up to `up_to`. Reads one small object for each commit.

    Commits of mutations, OPTIMIZE and purges do not count: they rewrite rows that were there.
    """
    total = _Sum()
    for _, actions in read_commits(lake, key, range(after + 1, up_to + 1)):
        if actions is None:
            return Arrivals(everything=True, rows=total.rows, first_at=total.first_at, removed=True)
        total.add(actions)
    return total.arrivals()


def bounded(lake: Lake, key: str, *, after: int, up_to: int, max_rows: int) -> int:
    """The newest version up to `up_to` by which at most `max_rows` rows arrived; one commit at least."""
    rows = 0
    for version, actions in read_commits(lake, key, range(after + 1, up_to + 1)):
        commit = _Sum()
        commit.add(actions or [])
        if rows and rows + commit.rows > max_rows:
            return version - 1
        rows += commit.rows
    return up_to


class _Sum:
    """Adds up commits."""

    def __init__(self) -> None:
        self.rows = 0
        self.removed = self.unknown_batches = False
        self.first_at: dt.datetime | None = None
        self.partitions: set[Partition] = set()
        self.batches: list[int] = []

    def add(self, actions: list[Action]) -> None:
        commit_info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        if parse_user_metadata(commit_info.get("userMetadata")).get("operation") in OPERATIONS_WITHOUT_NEW_ROWS:
            return
        changing = list(data_change_actions(actions))
        for action in changing:
            self._add_file(action)
        if changing and self.first_at is None:
            self.first_at = dt.datetime.fromtimestamp(int(commit_info.get("timestamp", 0)) / 1000, tz=dt.UTC)

    def _add_file(self, action: Action) -> None:
        if "modificationTime" not in action:
            self.removed = True
            return
        stats = json.loads(action.get("stats") or "{}")
        self.rows += int(stats.get("numRecords") or 0)
        self.partitions.add(tuple(sorted((action.get("partitionValues") or {}).items())))
        least = (stats.get("minValues") or {}).get(BATCH_COLUMN)
        if least is None:
            self.unknown_batches = True
        else:
            self.batches.append(int(least))

    def arrivals(self) -> Arrivals:
        return Arrivals(
            rows=self.rows,
            removed=self.removed,
            first_at=self.first_at,
            partitions=frozenset(self.partitions),
            first_batch=None if self.unknown_batches or not self.batches else min(self.batches),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Requests that no complete batch covers: their count, and when the oldest landed."""

    pipeline: str
    requests: int
    oldest_at: dt.datetime | None

    def age_seconds(self, now: dt.datetime) -> float:
        """Seconds the oldest request has waited; 0 where none waits."""
        return 0.0 if self.oldest_at is None else max(0.0, (now - self.oldest_at).total_seconds())


def declared_mutations(spec: PipelineSpec) -> MutationsSpec:
    """The declaration of how the pipeline's requests are applied.

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
    """The declaration of which columns of a table requests change.

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
    """The tables that requests change."""
    return [table for table in spec.tables if table.mutable is not None]


class Bounds:
    """Computes bounds from the logs of a pipeline's tables. Used by one thread."""

    def __init__(self, lake: Lake, objects: ObjectStore, spec: PipelineSpec) -> None:
        self._lake = lake
        self._home = PipelineHome(objects, spec.pipeline)
        self._spec = spec
        self._declared = declared_mutations(spec)
        self._batches = PipelineHome(objects, spec.pipeline).mutations

    def newest(self) -> dict[str, int]:
        """The current version of each table that batches read; -1 where the table does not exist."""
        opened = {name: self._lake.open(paths.table(self._spec.pipeline, name)) for name in self._input_tables()}
        return {name: -1 if table is None else table.version() for name, table in opened.items()}

    def following(
        self,
        number: int,
        *,
        organisation: str | None = None,
        everything: bool = False,
        until: Mapping[str, int] | None = None,
    ) -> MutationBatch | None:
        """The bounds of batch `number`; None where nothing arrived since the last one.

        Args:
            until: versions as of `newest`, beyond which the batch does not read; by default the current ones.
        """
        generation = self._home.generations.current()
        last = self._batches.last_full_batch()
        if last is None or last.generation != generation:
            last, everything = None, everything or number > 1
        covered = {} if last is None else {span.table: span for span in (last.requests, *last.tables)}
        everything = everything or any(self._recreated(span) for span in covered.values())
        before = {} if everything else covered
        until = self.newest() if until is None else until
        bound = None if everything else self._declared.max_requests
        spans = [
            self._span(name, before.get(name), until=until[name], bounded_by=bound) for name in self._input_tables()
        ]
        requests, *tables = spans
        forced = everything or organisation is not None
        if requests.up_to < 0 or not (forced or any(self._has_arrivals(span) for span in spans)):
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
        """The waiting requests. Reads one small object for each commit since the last batch."""
        last = self._batches.last_full_batch()
        key = paths.table(self._spec.pipeline, self._declared.requests)
        table = self._lake.open(key)
        if table is None:
            return Backlog(pipeline=self._spec.pipeline, requests=0, oldest_at=None)
        same_table = last is not None and last.requests.table_id == str(table.metadata().id)
        after = last.requests.up_to if last is not None and same_table else -1
        waiting = arrivals(self._lake, key, after=after, up_to=table.version())
        return Backlog(pipeline=self._spec.pipeline, requests=waiting.rows, oldest_at=waiting.first_at)

    def _input_tables(self) -> tuple[str, ...]:
        return (self._declared.requests, *(table.name for table in mutable_tables(self._spec)))

    def _has_arrivals(self, span: VersionRange) -> bool:
        """Whether rows arrived, commits of mutations and maintenance aside."""
        if span.is_empty:
            return False
        key = paths.table(self._spec.pipeline, span.table)
        return bool(arrivals(self._lake, key, after=span.after, up_to=span.up_to))

    def _recreated(self, span: VersionRange) -> bool:
        """Whether the table was recreated or removed since a batch read it."""
        table = self._lake.open(paths.table(self._spec.pipeline, span.table))
        return span.table_id != "" and (table is None or str(table.metadata().id) != span.table_id)

    def _span(self, name: str, before: VersionRange | None, *, until: int, bounded_by: int | None) -> VersionRange:
        key = paths.table(self._spec.pipeline, name)
        table = self._lake.open(key)
        if table is None:
            return VersionRange(table=name, table_id="", after=-1, up_to=-1)
        after = -1 if before is None else before.up_to
        table_id, newest = str(table.metadata().id), max(after, min(until, table.version()))
        if name == self._declared.requests and bounded_by is not None:
            newest = bounded(self._lake, key, after=after, up_to=newest, max_rows=bounded_by)
        return VersionRange(table=name, table_id=table_id, after=after, up_to=newest)
