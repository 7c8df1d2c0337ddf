"""Lists all tables of the catalog with their health, using many threads.

A table whose log cannot be read is reported with its error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from deltaworks.control import paths
from deltaworks.maintenance.table_health.measure import TableHealth, table_health
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.lake import Lake

#: Control tables in the control folder of a relay or a pipeline.
RELAY_TABLES = ("file_events", "message_quarantine")
CONTROL_TABLES = ("checkpoint_store", "batch_metadata_store", "progress", "zorder_ledger")
#: Number of threads. Opening a table mostly waits for the storage.
READER_THREADS = 16
#: Commits read per table to find its last operations, if many tables are read.
COMMITS_PER_TABLE = 8
_ERROR_LENGTH = 300
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class DeclaredTable:
    """A table of the catalog. `health` is None if the table does not exist or has an `error`."""

    owner: str
    name: str
    kind: str
    key: str
    health: TableHealth | None = None
    error: str = ""


def declared_tables(catalog: Catalog, *, pipeline: str = "", control: bool = True) -> list[DeclaredTable]:
    """Returns every table of the catalog without opening it, pipelines first, then control tables.

    Args:
        pipeline: only tables of this pipeline or relay.
    """
    tables = [DeclaredTable(*table) for table in _declared_tables(catalog, control=control)]
    return [table for table in tables if pipeline in ("", table.owner)]


def all_tables(
    lake: Lake,
    catalog: Catalog,
    *,
    pipeline: str = "",
    control: bool = True,
    partitions: bool = False,
    history_commits: int = COMMITS_PER_TABLE,
) -> list[DeclaredTable]:
    """Returns all tables of the catalog with their health."""
    declared = declared_tables(catalog, pipeline=pipeline, control=control)
    return with_health(lake.storage, declared, partitions=partitions, history_commits=history_commits)


def with_health(
    storage: StorageSpec,
    tables: Sequence[DeclaredTable],
    *,
    partitions: bool = False,
    history_commits: int = COMMITS_PER_TABLE,
) -> list[DeclaredTable]:
    """Returns the tables with health or error. An unreadable table raises no exception."""

    def read(lake: Lake, table: DeclaredTable) -> DeclaredTable:
        health, error = None, ""
        try:
            health = table_health(lake, table.key, partitions=partitions, history_commits=history_commits)
        except Exception as problem:  # any error of a damaged log is reported for the table
            error = describe_error(problem)
        return DeclaredTable(table.owner, table.name, table.kind, table.key, health, error)

    return list(map_tables(storage, tables, read))


def map_tables(storage: StorageSpec, tables: Iterable[T], function: Callable[[Lake, T], R]) -> Iterator[R]:
    """Applies a function to tables in parallel and yields the results in order. Each thread has its own lake."""
    thread_local = threading.local()

    def run(table: T) -> R:
        if not hasattr(thread_local, "lake"):
            thread_local.lake = Lake(storage)
        return function(thread_local.lake, table)

    with ThreadPoolExecutor(READER_THREADS, thread_name_prefix="tables") as pool:
        yield from pool.map(run, tables)


def describe_error(problem: Exception) -> str:
    """Formats an error on one line."""
    return f"{type(problem).__name__}: {' '.join(str(problem).split())}"[:_ERROR_LENGTH]


def _declared_tables(catalog: Catalog, *, control: bool) -> Iterator[tuple[str, str, str, str]]:
    for name, spec in catalog.pipelines.items():
        for table_name, kind in spec.table_kinds.items():
            yield name, table_name, kind, paths.table(name, table_name)
    if not control:
        return
    for name in catalog.relays:
        for table_name in RELAY_TABLES:
            yield name, table_name, "control", paths.relay_control(name, table_name)
    for name in catalog.pipelines:
        for table_name in CONTROL_TABLES:
            yield name, table_name, "control", paths.pipeline_control(name, table_name)
