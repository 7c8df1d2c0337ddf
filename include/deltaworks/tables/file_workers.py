"""Lists, measures and deletes many files of a table: in threads of this process, or in tasks on Spark's executors.

Each function here takes one folder or file, so that the same code runs in both places. A task opens its own clients
from the storage's declaration and its keys, which Spark ships in the serialized closure and never prints.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import fs

from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import ContractError
from deltaworks.specs.storage import StorageSpec, resolved_variables, set_missing_variables
from deltaworks.tables.driver_collect import collect_json
from deltaworks.tables.files import open_parquet
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import Action, is_absolute_path, row_count, stats_of, total_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = TypeVar("Result")

#: Requests in parallel in one process, because they are bound by latency.
THREADS = 16
#: Fewer folders or files than this are done by the driver's threads: a Spark job takes longer than their requests.
MIN_ITEMS_FOR_EXECUTORS = 32
_TASKS_PER_CORE = 2
_PATHS_SHOWN = 3


class ListedFile(NamedTuple):
    """A file below a table's folder: its path relative to the table, its size, and its modification time (ms)."""

    path: str
    bytes: int
    modified_ms: int | None


@dataclass(frozen=True, slots=True)
class TableFolder:
    """The folder of a table in a storage, as one process sees it."""

    lake: Lake
    objects: ObjectStore
    key: str

    @property
    def root(self) -> str:
        """Its path for `lake.filesystem`."""
        return arrow_path(self.lake.storage, self.key)


def list_folder(table: TableFolder, folder: str) -> list[ListedFile]:
    """Lists the files below a folder of a table, with all its subfolders. From an executor they are plain lists."""
    infos = table.lake.filesystem.get_file_info(fs.FileSelector(f"{table.root}/{folder}", recursive=True))
    return [
        ListedFile(
            info.path.removeprefix(f"{table.root}/"),
            info.size or 0,
            None if info.mtime_ns is None else info.mtime_ns // 1_000_000,
        )
        for info in infos
        if info.type is fs.FileType.File
    ]


def file_size(table: TableFolder, path: str) -> int | None:
    """Returns the size of a file of a table; None if it does not exist."""
    info = table.lake.filesystem.get_file_info(f"{table.root}/{path}")
    return (info.size or 0) if info.type is fs.FileType.File else None


def delete_file(table: TableFolder, path: str) -> None:
    """Deletes a file of a table. Idempotent. One request each, since not all S3-compatible servers delete in bulk."""
    table.objects.delete(f"{table.key}/{path}")


def stored_rows(table: TableFolder, path: str) -> int | None:
    """Returns the number of rows in a data file, by its footer; None if it cannot be read."""
    if is_absolute_path(path):
        return None
    try:
        with table.lake.filesystem.open_input_file(f"{table.root}/{path}") as source:
            return int(open_parquet(source).metadata.num_rows)
    except (FileNotFoundError, pa.ArrowException):
        return None


def with_row_counts(lake: Lake, key: str, files: Sequence[Action]) -> list[Action]:
    """Returns add actions of the table at `key` with the numbers of rows that their statistics lack, read from the
    files. A file that cannot be read stays without one.
    """
    unknown = sorted({unquote(added["path"]) for added in files if row_count(added) is None})
    if not unknown:
        return list(files)
    counts = dict(zip(unknown, _THREADS.map(stored_rows, TableFolder(lake, lake.objects, key), unknown), strict=True))
    counted = []
    for added in files:
        count = counts.get(unquote(added["path"])) if row_count(added) is None else None
        stats = added if count is None else {**added, "stats": json.dumps({**stats_of(added), "numRecords": count})}
        counted.append(stats)
    return counted


def count_rows(lake: Lake, key: str, files: Sequence[Action]) -> int:
    """Returns the number of rows of these add actions, by their statistics or else by the files.

    Raises:
        ContractError: ROWS_UNKNOWN.
    """
    counted = with_row_counts(lake, key, files)
    unknown = [added["path"] for added in counted if row_count(added) is None]
    if unknown:
        raise rows_unknown_error(key, unknown)
    return total_rows(counted) or 0


def table_rows(lake: Lake, key: str, table: DeltaTable) -> int:
    """Returns the number of rows in the files of the open table at `key`, including those that are marked as deleted.

    Raises:
        ContractError: ROWS_UNKNOWN.
    """
    added = pa.table(table.get_add_actions(flatten=True))
    counts = rows_by_file(lake, key, added)
    if None in counts:
        paths = added.column("path").to_pylist()
        raise rows_unknown_error(key, [path for path, rows in zip(paths, counts, strict=True) if rows is None])
    return sum(rows or 0 for rows in counts)


def rows_by_file(lake: Lake, key: str, added: pa.Table) -> list[int | None]:
    """Returns the number of rows of each file in the result of `get_add_actions` for the table at `key`: by its
    statistics, or else by the file. None if the file cannot be read.
    """
    if not added.num_rows:
        return []
    paths, counts = (added.column(name).to_pylist() for name in ("path", "num_records"))
    unknown = [{"path": path} for path, count in zip(paths, counts, strict=True) if count is None]
    counted = iter(map(row_count, with_row_counts(lake, key, unknown)))
    return [next(counted) if count is None else int(count) for count in counts]


def rows_unknown_error(table: str, paths: Sequence[str]) -> ContractError:
    """Builds the error for files whose number of rows is neither in the log nor can be read."""
    shown = ", ".join(paths[:_PATHS_SHOWN]) + (" and more" if len(paths) > _PATHS_SHOWN else "")
    return ContractError(
        "ROWS_UNKNOWN", f"{len(paths)} files of {table} have no number of rows, and cannot be read: {shown}."
    )


class FileWorkers(Protocol):
    """Runs a function for each of many folders or files of a table. Its results are plain JSON values."""

    def map(
        self, function: Callable[[TableFolder, str], Result], table: TableFolder, items: Sequence[str]
    ) -> Iterable[Result]:
        """Returns the results in the order of the items. Raises the first error."""


class ThreadWorkers:
    """Threads of this process."""

    def map(
        self, function: Callable[[TableFolder, str], Result], table: TableFolder, items: Sequence[str]
    ) -> Iterable[Result]:
        """See `FileWorkers`."""
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(partial(function, table), items))


_THREADS = ThreadWorkers()


class ExecutorWorkers:
    """Tasks on the executors of a Spark session; few items are done by threads of the driver.

    Attributes:
        executed: the number of items that tasks on executors worked on.
    """

    def __init__(self, spark: SparkSession, *, min_items: int = MIN_ITEMS_FOR_EXECUTORS) -> None:
        self._spark = spark
        self._min_items = min_items
        self._driver = ThreadWorkers()
        self.executed = 0

    def map(
        self, function: Callable[[TableFolder, str], Result], table: TableFolder, items: Sequence[str]
    ) -> Iterable[Result]:
        """See `FileWorkers`."""
        if len(items) < self._min_items:
            return self._driver.map(function, table, items)
        context = self._spark.sparkContext
        storage = table.lake.storage
        task = partial(_run_task, function, storage.model_dump_json(), resolved_variables(storage), table.key)
        tasks = min(len(items), _TASKS_PER_CORE * context.defaultParallelism)
        results: list[Result] = collect_json(context.parallelize(items, tasks).mapPartitions(task))
        self.executed += len(items)
        return results


def _run_task(
    function: Callable[[TableFolder, str], Result],
    declared: str,
    variables: dict[str, str],
    key: str,
    items: Iterable[str],
) -> Iterator[Result]:
    """Runs the function for one task's share, in a worker on an executor."""
    set_missing_variables(variables)
    storage = StorageSpec.model_validate_json(declared)
    lake = Lake(storage)
    _ = lake.filesystem  # opened before the threads share it
    table = TableFolder(lake, open_objects(storage), key)
    with ThreadPoolExecutor(THREADS) as pool:
        yield from pool.map(partial(function, table), items)
