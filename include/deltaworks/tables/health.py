"""The health of tables, read from their Delta logs without a JVM: files, sizes, small files, last operations."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from deltaworks.control import paths
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.gold import GoldTableSpec
from deltaworks.specs.pipeline import LiveTableSpec, TableSpec
from deltaworks.tables.changes import Partition
from deltaworks.tables.lake import Lake, arrow_path
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


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table the catalog declares or implies. `health` is None while it has not been created."""

    owner: str
    name: str
    kind: str
    key: str
    health: TableHealth | None


def table_health(lake: Lake, key: str, *, history_commits: int = 100) -> TableHealth | None:
    """The health of the table at `key`; None where there is none. Reads the log, no data.

    Args:
        history_commits: how far back last operations are looked for; each commit is one small read.
    """
    table = lake.open(key)
    if table is None:
        return None
    adds = pa.table(table.get_add_actions(flatten=False))
    sizes: list[int] = adds.column("size_bytes").to_pylist()
    places = _places(adds)
    small = Counter(place for place, size in zip(places, sizes, strict=True) if size < SMALL_FILE_BYTES)
    mergeable = sum(count for count in small.values() if count > 1)
    records = adds.column("num_records").to_pylist() if "num_records" in adds.column_names else []
    known = all(count is not None for count in records) and len(records) == len(sizes)
    return TableHealth(
        key=key,
        version=table.version(),
        files=len(sizes),
        bytes=sum(sizes),
        rows=sum(records) if known else None,
        small_files=mergeable,
        small_file_share=mergeable / len(sizes) if sizes else 0.0,
        partitions=len(set(places)),
        partition_by=tuple(table.metadata().partition_columns),
        last_checkpoint=_last_checkpoint(lake, key),
        last_operations=_last_operations(lake, key, table.version(), history_commits),
    )


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


def _last_checkpoint(lake: Lake, key: str) -> int | None:
    path = f"{arrow_path(lake.storage, key)}/_delta_log/_last_checkpoint"
    try:
        with lake.filesystem.open_input_stream(path) as stream:
            return int(json.loads(stream.read())["version"])
    except FileNotFoundError:
        return None


def _last_operations(lake: Lake, key: str, version: int, commits: int) -> dict[str, LastOperation]:
    """The newest commit of each kind within the newest `commits`."""
    found: dict[str, LastOperation] = {}
    for commit in commit_history(lake, key, newest=version, limit=commits):
        run = commit.metadata.get("run")
        found.setdefault(commit.operation, LastOperation(commit.operation, commit.version, commit.at, run))
    return found
