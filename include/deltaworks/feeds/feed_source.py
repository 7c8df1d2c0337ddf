"""Sources of feeds: a gold table with its versions, or a view with its stored results.

The log of a gold table shows which partitions changed. Only these are compared if the partition column is part of the
key, because then a key cannot move between partitions.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.foreign_errors import data_file_error
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.feeds import FeedRecords, Position
from deltaworks.errors import ContractError, DeltaworksError
from deltaworks.feeds.messages import Change, count_changes, iter_changes
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.feeds import FeedSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.changes import Changes, changed_partitions
from deltaworks.tables.duckdb_session import duckdb_session
from deltaworks.tables.features import has_deletion_vectors
from deltaworks.tables.files import read_parquet
from deltaworks.tables.lake import Lake, duckdb_source
from deltaworks.tables.log import commit_history
from deltaworks.tables.query import connect
from deltaworks.tables.versions import Versions

_BEFORE, _AFTER = "before", "after"
#: Maximum commits that are read to determine how long a change has been pending.
_MAX_COMMITS = 1000


class FeedSource(Protocol):
    """The source of a feed. Used by one thread."""

    def current(self) -> Position:
        """Returns the position of the newest state. The result of a view is stored, so that it can be read again."""

    def may_differ(self, base: Position, target: Position) -> bool:
        """Returns whether rows may differ between two states; True if unknown."""

    def pending_since(self, base: Position, target: Position) -> str:
        """Returns the time of the first change after `base`, in ISO 8601."""

    def changes(self, base: Position, target: Position, *, skip: int = 0) -> Generator[Change]:
        """Yields the changes between two states, in key order.

        Raises:
            ContractError: FEED_POSITION_UNAVAILABLE, FEED_COLUMN_MISSING.
        """

    def count(self, base: Position, target: Position) -> int:
        """Counts the changes. Raises the same errors as `changes`."""


def open_feed_source(
    catalog: Catalog, spec: PipelineSpec, feed: FeedSpec, objects: ObjectStore, records: FeedRecords
) -> FeedSource:
    """Opens the source of a feed."""
    if any(view.name == feed.reads for view in spec.views):
        return ViewSource(catalog, spec, feed, objects, records)
    return TableSource(catalog, spec, feed)


class _ComparableSource:
    """Base of sources: compares two states as relations of one DuckDB connection."""

    def __init__(self, spec: PipelineSpec, feed: FeedSpec) -> None:
        self._feed = feed
        self._name = f"{spec.pipeline}.{feed.reads}"

    def _open_state(self, position: Position, other: Position) -> tuple[Any, Sequence[str]] | None:
        """Returns a DuckDB relation with the part of a state that may differ from the other state; None without
        rows."""
        raise NotImplementedError

    def _missing_files_error(self, position: Position) -> DeltaworksError | None:
        """Returns the error for missing files of a state."""
        return None

    def changes(self, base: Position, target: Position, *, skip: int = 0) -> Generator[Change]:
        with self._comparison(base, target) as (connection, arguments):
            yield from iter_changes(connection, **arguments, skip=skip)

    def count(self, base: Position, target: Position) -> int:
        with self._comparison(base, target) as (connection, arguments):
            return count_changes(connection, **arguments)

    @contextmanager
    def _comparison(
        self, base: Position, target: Position
    ) -> Iterator[tuple[duckdb.DuckDBPyConnection, dict[str, Any]]]:
        try:
            before, after = self._open_state(base, target), self._open_state(target, base)
            with duckdb_session() as connection:
                connection.execute("SET TimeZone = 'UTC'")
                columns = self._columns(after or before)
                names = {
                    name: self._bind(connection, name, state, columns)
                    for name, state in ((_BEFORE, before), (_AFTER, after))
                }
                yield connection, {**names, "key": self._feed.key, "columns": columns}
        except (duckdb.Error, OSError, pa.ArrowException) as error:
            lost, missing_files = self._missing_files_error(target), self._missing_files_error(base)
            if (lost or not missing_files) and (damaged := data_file_error(error, tables=[self._name])) is not None:
                raise damaged from error
            missing_files = missing_files or lost
            raise ContractError(
                "FEED_POSITION_UNAVAILABLE" if missing_files else "FEED_SOURCE_UNREADABLE",
                f"{self._name} cannot be compared between {base} and {target}: "
                f"{missing_files.message if missing_files else ' '.join(str(error).split())[:500]}",
                hint=_REPLAY_HINT
                if missing_files
                else f"Run it yourself: deltaworks sql 'SELECT * FROM {self._name}'.",
                retryable=missing_files is None,
            ) from error

    def _columns(self, state: tuple[Any, Sequence[str]] | None) -> list[str]:
        if state is None:
            return []
        _, names = state
        missing = [name for name in (*self._feed.key, *self._feed.columns) if name not in names]
        if missing:
            raise ContractError(
                "FEED_COLUMN_MISSING",
                f"{self._name} has no column {missing[0]!r}, which the feed {self._feed.name!r} declares.",
                hint=f"Its columns are {', '.join(names)}.",
            )
        return list(self._feed.columns) or [name for name in names if name not in self._feed.key]

    def _bind(
        self,
        connection: duckdb.DuckDBPyConnection,
        name: str,
        state: tuple[Any, Sequence[str]] | None,
        columns: Sequence[str],
    ) -> str | None:
        if state is None:
            return None
        relation, names = state
        connection.register(f"{name}_rows", relation)
        # A column that was added later counts as null before.
        listed = [f'"{column}"' if column in names else f'NULL AS "{column}"' for column in (*self._feed.key, *columns)]
        connection.execute(f'CREATE TEMP VIEW {name} AS SELECT {", ".join(listed)} FROM "{name}_rows"')
        return name


_REPLAY_HINT = (
    "Send all rows again: `deltaworks feeds replay PIPELINE FEED --everything`. Deletions in the meantime are not sent."
)


class TableSource(_ComparableSource):
    """A gold table. Its states are versions."""

    def __init__(self, catalog: Catalog, spec: PipelineSpec, feed: FeedSpec) -> None:
        super().__init__(spec, feed)
        self._lake = Lake(catalog.environment.lake)
        self._key = paths.table(spec.pipeline, feed.reads)
        self._partition = next(table.partition_by for table in spec.gold.tables if table.name == feed.reads)

    def current(self) -> Position:
        table = self._lake.open(self._key)
        if table is None:
            return Position(kind="table")
        return Position(kind="table", table_id=str(table.metadata().id), version=table.version())

    def may_differ(self, base: Position, target: Position) -> bool:
        return base != target and bool(self._changed_partitions(base, target))

    def pending_since(self, base: Position, target: Position) -> str:
        since = max(base.version, -1) if base.table_id in ("", target.table_id) else -1
        newest, count = target.version, min(target.version - since, _MAX_COMMITS)
        commits = commit_history(self._lake, self._key, newest=newest, limit=count) if count > 0 else ()
        times = [commit.at for commit in commits if commit.changes_rows]
        return min(times).isoformat(timespec="milliseconds") if times else iso_now()

    def _changed_partitions(self, base: Position, target: Position) -> Changes:
        if base.is_empty or target.is_empty or base.table_id != target.table_id:
            return Changes(is_unbounded=True, reason="another table")
        low, high = sorted((base.version, target.version))
        return changed_partitions(self._lake, self._key, after_version=low, up_to_version=high)

    def _open_state(self, position: Position, other: Position) -> tuple[Any, Sequence[str]] | None:
        if position.is_empty:
            return None
        versions = Versions(self._lake, self._key, name=self._name)
        try:
            table = versions.open(position.version)
        except DeltaworksError as error:
            raise self._unavailable_error(position, error.message) from error
        if str(table.metadata().id) != position.table_id:
            raise self._unavailable_error(position, "the table was recreated")
        changed = (
            self._changed_partitions(position, other).partition_values(self._partition)
            if self._partition in self._feed.key
            else None
        )
        return _filter_partitions(self._lake, table, self._partition, changed), [
            field.name for field in table.schema().fields
        ]

    def _unavailable_error(self, position: Position, reason: str) -> ContractError:
        return ContractError(
            "FEED_POSITION_UNAVAILABLE",
            f"{position} of {self._name} is no longer readable: {reason}.",
            hint=_REPLAY_HINT,
        )

    def _missing_files_error(self, position: Position) -> DeltaworksError | None:
        if position.is_empty:
            return None
        return Versions(self._lake, self._key, name=self._name).missing_files_error(position.version)


def _filter_partitions(lake: Lake, table: DeltaTable, column: str, values: frozenset[str | None] | None) -> Any:
    """Returns the rows of the given partitions, or of all."""
    relation = duckdb_source(lake, table)
    if values is None or has_deletion_vectors(table):
        return relation
    column_type = relation.schema.field(column).type
    non_null = pa.array([value for value in values if value is not None], pa.string()).cast(column_type)
    condition = pc.field(column).isin(non_null)
    return relation.filter(condition | pc.field(column).is_null() if None in values else condition)


@dataclass
class _ViewResult:
    """A stored result of a view query."""

    data: bytes
    rows: int

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


class ViewSource(_ComparableSource):
    """A view. Its states are stored results."""

    def __init__(
        self, catalog: Catalog, spec: PipelineSpec, feed: FeedSpec, objects: ObjectStore, records: FeedRecords
    ) -> None:
        super().__init__(spec, feed)
        self._catalog = dataclasses.replace(catalog, pipelines={spec.pipeline: spec})
        self._objects, self._records = objects, records

    def current(self) -> Position:
        answer = self._query_view()
        if answer is None:
            return Position(kind="view")
        key = self._records.view_result_key(answer.digest)
        if self._objects.etag(key) is None:
            self._objects.put_if_absent(key, answer.data)
        return Position(kind="view", digest=answer.digest)

    def may_differ(self, base: Position, target: Position) -> bool:
        return base != target

    def pending_since(self, base: Position, target: Position) -> str:
        return iso_now()

    def _query_view(self) -> _ViewResult | None:
        """Queries the view and returns its sorted rows; None while a table that it reads does not exist."""
        connection, names = connect(self._catalog, statement=f"SELECT * FROM {self._name}")
        with connection:
            if self._name not in names:
                return None
            schema, view = self._name.split(".")
            try:
                max_rows = self._feed.max_rows
                query = f'SELECT * FROM "{schema}"."{view}" ORDER BY ALL LIMIT {max_rows + 1}'
                result = connection.sql(query).to_arrow_table()
            except duckdb.Error as error:
                raise data_file_error(error) or ContractError(
                    "FEED_SOURCE_UNREADABLE",
                    f"View {self._name} cannot be read: {' '.join(str(error).split())[:500]}.",
                    hint=f"Run it yourself: deltaworks sql 'SELECT * FROM {self._name}'.",
                    retryable=True,
                ) from error
        if result.num_rows > max_rows:
            raise ContractError(
                "FEED_TOO_MANY_ROWS", f"The answer of the view {self._name} has more than {max_rows:,} rows."
            )
        sink = io.BytesIO()
        pq.write_table(result.combine_chunks(), sink, compression="zstd")
        return _ViewResult(sink.getvalue(), result.num_rows)

    def _open_state(self, position: Position, other: Position) -> tuple[Any, Sequence[str]] | None:
        if position.is_empty:
            return None
        stored = self._objects.get(self._records.view_result_key(position.digest))
        if stored is None:
            raise ContractError(
                "FEED_POSITION_UNAVAILABLE", f"{position} of {self._name} is no longer stored.", hint=_REPLAY_HINT
            )
        rows = read_parquet(io.BytesIO(stored.data))
        return rows, rows.column_names
