"""The health of tables, read from their Delta logs without a JVM: files, sizes, small files, last operations."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
from deltalake import DeltaTable

from deltaworks.control import paths
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.gold import GoldTableSpec
from deltaworks.specs.pipeline import LiveTableSpec, TableSpec
from deltaworks.tables.changes import Partition
from deltaworks.tables.deletion_vectors import deleted_rows, read_last_checkpoint
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history

#: A file below this is small: opening it costs a reader about as much as reading it.
SMALL_FILE_BYTES = 16 << 20
#: Tables of the engine itself, below a relay's or a pipeline's control folder.
RELAY_TABLES = ("file_events", "message_quarantine")
CONTROL_TABLES = ("checkpoint_store", "batch_metadata_store", "progress")


@dataclass(frozen=True, slots=True)
class LastOperation:
    """The newest commit of one kind (WRITE, MERGE, OPTIMIZE, VACUUM END, ...)."""

    operation: str
    version: int
    at: dt.datetime
    run: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHealth:
    """What the log says of one partition; a table without partitions has one, which is named by nothing.

    `small_files` and `small_bytes` are of files that OPTIMIZE would merge: below SMALL_FILE_BYTES, two at least.
    `rows` counts those in the files, `deletion_vector_rows` those of them that are marked as deleted; both are None
    where the log does not say.
    """

    partition: Partition
    files: int
    bytes: int
    small_files: int
    small_bytes: int
    rows: int | None
    deletion_vector_rows: int | None
    newest_file_at: dt.datetime


@dataclass(frozen=True, slots=True)
class TableHealth:
    """What the log says of one version of a table.

    `small_file_share` is the share of files below SMALL_FILE_BYTES that have another such file in their partition:
    those which OPTIMIZE would merge. A partition's only file is as large as it can be and never counts.
    """

    key: str
    version: int
    files: int
    bytes: int
    rows: int | None
    small_files: int
    small_file_share: float
    partitions: int
    partition_by: tuple[str, ...]
    last_checkpoint: int | None
    last_operations: dict[str, LastOperation] = field(default_factory=dict)
    partition_health: tuple[PartitionHealth, ...] = ()

    @property
    def commits_since_checkpoint(self) -> int:
        """How many commits a reader replays on top of the last checkpoint."""
        return self.version - (self.last_checkpoint if self.last_checkpoint is not None else -1)

    @property
    def average_file_bytes(self) -> float:
        """Bytes per file, 0 for an empty table."""
        return self.bytes / self.files if self.files else 0.0

    @property
    def last_change_at(self) -> dt.datetime | None:
        """When the newest commit was made."""
        return max((operation.at for operation in self.last_operations.values()), default=None)


class _File(NamedTuple):
    size: int
    modified: int
    rows: int | None
    deleted: int | None


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table the catalog declares or implies. `health` is None while it has not been created."""

    owner: str
    name: str
    kind: str
    key: str
    health: TableHealth | None


def table_health(lake: Lake, key: str, *, partitions: bool = True, history_commits: int = 100) -> TableHealth | None:
    """The health of the table at `key`; None where there is none. Reads the log, no data.

    Args:
        partitions: tell every partition too, sorted by name.
        history_commits: how far back last operations are looked for; each commit is one small read.
    """
    table = lake.open(key)
    if table is None:
        return None
    checkpoint = read_last_checkpoint(lake, key)
    found = _partition_health(table, deleted_rows(lake, key, table, checkpoint=checkpoint))
    files, small = sum(each.files for each in found), sum(each.small_files for each in found)
    return TableHealth(
        key=key,
        version=table.version(),
        files=files,
        bytes=sum(each.bytes for each in found),
        rows=_sum_of(each.rows for each in found),
        small_files=small,
        small_file_share=small / files if files else 0.0,
        partitions=len(found),
        partition_by=tuple(table.metadata().partition_columns),
        last_checkpoint=int(checkpoint["version"]) if checkpoint is not None else None,
        last_operations=_last_operations(lake, key, table.version(), history_commits),
        partition_health=found if partitions else (),
    )


def _partition_health(table: DeltaTable, deleted: Mapping[str, int] | None) -> tuple[PartitionHealth, ...]:
    """Every partition, by name. `deleted` are the rows of files that a deletion vector marks, None if not known."""
    adds = pa.table(table.get_add_actions(flatten=False))
    records = adds.column("num_records").to_pylist() if "num_records" in adds.column_names else [None] * adds.num_rows
    names = ("path", "size_bytes", "modification_time")
    members: dict[Partition, list[_File]] = {}
    columns = (adds.column(name).to_pylist() for name in names)
    for place, path, size, at, rows in zip(_places(adds), *columns, records, strict=True):
        marked = None if deleted is None else deleted.get(path, 0)
        members.setdefault(place, []).append(_File(size, at, rows, marked))
    return tuple(_of_partition(place, files) for place, files in sorted(members.items(), key=str))


def _of_partition(place: Partition, files: Sequence[_File]) -> PartitionHealth:
    small = [file.size for file in files if file.size < SMALL_FILE_BYTES]
    mergeable = small if len(small) > 1 else []
    return PartitionHealth(
        partition=place,
        files=len(files),
        bytes=sum(file.size for file in files),
        small_files=len(mergeable),
        small_bytes=sum(mergeable),
        rows=_sum_of(file.rows for file in files),
        deletion_vector_rows=_sum_of(file.deleted for file in files),
        newest_file_at=dt.datetime.fromtimestamp(max(file.modified for file in files) / 1000, tz=dt.UTC),
    )


def _sum_of(counts: Iterable[int | None]) -> int | None:
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def files_by_partition(lake: Lake, key: str) -> dict[Partition, list[int]]:
    """The sizes of the files of each partition, which is named as the log names it."""
    table = lake.open(key)
    if table is None:
        return {}
    adds = pa.table(table.get_add_actions(flatten=False))
    found: dict[Partition, list[int]] = {}
    for place, size in zip(_places(adds), adds.column("size_bytes").to_pylist(), strict=True):
        found.setdefault(place, []).append(size)
    return found


def files_per_partition(lake: Lake, key: str, column: str) -> dict[str | None, list[int]]:
    """The sizes of the files of each value of a partition column, as the log writes the value."""
    found: dict[str | None, list[int]] = {}
    for place, sizes in files_by_partition(lake, key).items():
        found.setdefault(dict(place).get(column), []).extend(sizes)
    return found


def all_tables(lake: Lake, catalog: Catalog, *, control: bool = True) -> list[KnownTable]:
    """Every table of the catalog with its health, pipelines first, then the engine's own where `control`."""
    return [
        KnownTable(owner, name, kind, key, table_health(lake, key))
        for owner, name, kind, key in _declared(catalog, control=control)
    ]


def _declared(catalog: Catalog, *, control: bool) -> Iterator[tuple[str, str, str, str]]:
    for name, spec in catalog.pipelines.items():
        kinds: dict[str, Sequence[TableSpec | LiveTableSpec | GoldTableSpec]] = {
            "bronze": spec.tables,
            "live": spec.live,
            "gold": spec.gold.tables,
        }
        for kind, tables in kinds.items():
            for table in tables:
                yield name, table.name, kind, paths.table(name, table.name)
        for kept in () if spec.mutations is None else (spec.mutations.names, spec.mutations.intervals):
            yield name, kept, "mutations", paths.table(name, kept)
        yield name, "quarantine", "quarantine", paths.table(name, "quarantine")
    if not control:
        return
    for name in catalog.relays:
        for table_name in RELAY_TABLES:
            yield name, table_name, "control", paths.relay_control(name, table_name)
    for name in catalog.pipelines:
        for table_name in CONTROL_TABLES:
            yield name, table_name, "control", paths.pipeline_control(name, table_name)


def _places(adds: pa.Table) -> list[Partition]:
    """The partition of each file; the empty one in a table without partitions."""
    if "partition" not in adds.column_names:
        return [()] * adds.num_rows
    values = adds.column("partition").to_pylist()
    return [tuple(sorted((name, _as_logged(value)) for name, value in (place or {}).items())) for place in values]


def _as_logged(value: object) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _last_operations(lake: Lake, key: str, version: int, commits: int) -> dict[str, LastOperation]:
    """The newest commit of each kind within the newest `commits`."""
    found: dict[str, LastOperation] = {}
    for commit in commit_history(lake, key, newest=version, limit=commits):
        run = commit.metadata.get("run")
        found.setdefault(commit.operation, LastOperation(commit.operation, commit.version, commit.at, run))
    return found
