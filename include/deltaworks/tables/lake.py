"""The lake as the JVM-free side sees it: tables are opened, appended to and read, and folders removed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyarrow import fs

from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.commit import CommitOutcome, Step, commit_step, ensure_table, open_table, refresh
from deltaworks.tables.features import has_deletion_vectors
from deltaworks.tables.files import split_by_partition, write_file

_DELETE_THREADS = 16


def arrow_filesystem(storage: StorageSpec) -> fs.FileSystem:
    """pyarrow's filesystem for a storage."""
    return fs.LocalFileSystem() if storage.scheme == "file" else fs.S3FileSystem(**storage.arrow_options())


def arrow_path(storage: StorageSpec, key: str) -> str:
    """`key` in terms of `arrow_filesystem`."""
    if storage.scheme == "file":
        return f"{storage.prefix}/{key}"
    return "/".join(part for part in (storage.bucket, storage.prefix, key) if part)


class Lake:
    """Tables of one storage by key. Not safe to share between threads: open one each."""

    def __init__(self, storage: StorageSpec) -> None:
        self.storage = storage
        self._options = storage.deltalake_options()
        self._filesystem: fs.FileSystem | None = None
        self._objects: ObjectStore | None = None

    @property
    def filesystem(self) -> fs.FileSystem:
        """pyarrow's view of the storage, opened on first use."""
        if self._filesystem is None:
            self._filesystem = arrow_filesystem(self.storage)
        return self._filesystem

    @property
    def objects(self) -> ObjectStore:
        """The storage by single objects, opened on first use."""
        if self._objects is None:
            self._objects = open_objects(self.storage)
        return self._objects

    def open(self, key: str) -> DeltaTable | None:
        """The table at `key`, or None where there is none."""
        try:
            return open_table(self.storage.uri(key), storage_options=self._options)
        except TableNotFoundError:
            return None

    def ensure(
        self,
        key: str,
        schema: pa.Schema,
        *,
        user_metadata: str,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> DeltaTable:
        """The table at `key`, created where there is none."""
        return ensure_table(
            self.storage.uri(key),
            schema,
            storage_options=self._options,
            partition_by=partition_by,
            user_metadata=user_metadata,
            properties=properties,
        )

    def append(
        self,
        table: DeltaTable,
        key: str,
        rows: pa.Table,
        *,
        step: Step,
        user_metadata: str,
        owner: Step | None = None,
    ) -> CommitOutcome:
        """Write `rows` as files of the table and commit them as one step."""
        root = arrow_path(self.storage, key)
        parts = split_by_partition(rows, table.metadata().partition_columns) if rows.num_rows else []
        files = [write_file(self.filesystem, root, part, partition=values) for values, part in parts]
        actions = [file.add_action() for file in files]
        return commit_step(table, actions, step=step, owner=owner, user_metadata=user_metadata)

    def rows(self, key: str, *, columns: Sequence[str] | None = None, filters: Any = None) -> pa.Table | None:
        """The table's rows, read through deltalake; None where there is no table."""
        table = self.open(key)
        return None if table is None else rows_of(self, table, columns=columns, filters=filters)


def dataset_of(lake: Lake, table: DeltaTable) -> ds.Dataset:
    """The open table of this lake as pyarrow's dataset, at the version it is open at.

    Files are read by Arrow's own file system. Left to itself, deltalake hands Arrow a Python object for each file;
    Arrow's threads may drop the last of them when the interpreter is gone already, and then the process ends by abort
    after its work is done. Sizes come from the log, so that S3 is not asked for them.

    Raises:
        DeltaProtocolError: the table has deletion vectors.
    """
    address = urlparse(table.table_uri)
    root = fs.SubTreeFileSystem(unquote(address.netloc + address.path).rstrip("/"), lake.filesystem)
    dataset = table.to_pyarrow_dataset(filesystem=root)
    added = pa.table(table.get_add_actions())
    # The log's paths are URLs, a dataset's are not.
    paths = map(unquote, added.column("path").to_pylist())
    sizes = dict(zip(paths, added.column("size_bytes").to_pylist(), strict=True))
    sized = [
        fragment.format.make_fragment(
            fragment.path,
            filesystem=root,
            partition_expression=fragment.partition_expression,
            file_size=sizes.get(fragment.path),
        )
        for fragment in dataset.get_fragments()
    ]
    return ds.FileSystemDataset(sized, dataset.schema, dataset.format, root)


def rows_of(lake: Lake, table: DeltaTable, *, columns: Sequence[str] | None = None, filters: Any = None) -> pa.Table:
    """The rows of the open table that `filters`, an expression of pyarrow, lets through."""
    names = list(columns) if columns else None
    if not has_deletion_vectors(table):
        return dataset_of(lake, table).to_table(columns=names, filter=filters)
    return ds.Scanner.from_batches(_scan_batches(table), columns=names, filter=filters).to_table()


def iter_row_batches(lake: Lake, table: DeltaTable, *, columns: Sequence[str]) -> Iterator[pa.Table]:
    """All rows of the open table, in parts that are read one after the other."""
    if has_deletion_vectors(table):
        scanner = ds.Scanner.from_batches(_scan_batches(table), columns=list(columns))
    else:
        scanner = dataset_of(lake, table).scanner(columns=list(columns))
    for batch in scanner.to_batches():
        if batch.num_rows:
            yield pa.Table.from_batches([batch])


def duckdb_source(lake: Lake, table: DeltaTable) -> Any:
    """The open table as something DuckDB can register, and scan as often as it likes."""
    return _DeletionVectorStream(table) if has_deletion_vectors(table) else dataset_of(lake, table)


class _DeletionVectorStream:
    """A table with deletion vectors; each scan reads it again."""

    def __init__(self, table: DeltaTable) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return _scan_batches(self._table).__arrow_c_stream__(requested_schema)


def _scan_batches(table: DeltaTable) -> pa.RecordBatchReader:
    # Texts come as views, which pyarrow's filters do not know.
    return pa.RecordBatchReader.from_stream(table.scan()).cast(pa.schema(table.schema().to_arrow()))


def select_rows(
    lake: Lake, key: str, table: DeltaTable, *, columns: Sequence[str], values: Mapping[str, Sequence[Any]]
) -> list[dict[str, Any]]:
    """The rows whose columns have one of these values each, of an open table that is not partitioned, as it is now.

    Files whose bounds hold none of a column's values are not opened.
    """
    refresh(table)
    schema = pa.schema(table.schema().to_arrow())
    root = arrow_path(lake.storage, key)
    matching_rows: list[dict[str, Any]] = []
    for path in _candidate_paths(table, values):
        with lake.filesystem.open_input_file(f"{root}/{path}") as source:
            rows = pq.read_table(source, columns=sorted({*columns, *values}))
        mask = None
        for name, accepted in values.items():
            kind = schema.field(name).type
            same = pc.is_in(rows.column(name), value_set=pa.array(accepted, kind))
            mask = same if mask is None else pc.and_(mask, same)
        matching_rows += rows.filter(mask).select(list(columns)).to_pylist()
    return matching_rows


def _candidate_paths(table: DeltaTable, values: Mapping[str, Sequence[Any]]) -> list[str]:
    files = pa.table(table.get_add_actions(flatten=True))
    if not files.num_rows:
        return []
    mask = pa.chunked_array([pa.array([True] * files.num_rows)])
    for name, accepted in values.items():
        low, high = f"min.{name}", f"max.{name}"
        if low not in files.column_names or high not in files.column_names:
            continue
        minimum, maximum = files.column(low), files.column(high)
        any_value = pa.chunked_array([pa.array([False] * files.num_rows)])
        for value in accepted:
            within = pc.and_(pc.less_equal(minimum, value), pc.greater_equal(maximum, value))
            # A file without bounds may hold anything.
            any_value = pc.or_(any_value, pc.fill_null(within, True))
        mask = pc.and_(mask, any_value)
    paths: list[str] = files.filter(mask).column("path").to_pylist()
    return paths


def remove_folder(storage: StorageSpec, prefix: str) -> None:
    """Delete everything below `prefix`, in no order. Nothing happens where there is nothing."""
    if storage.scheme == "file":
        filesystem, folder = arrow_filesystem(storage), arrow_path(storage, prefix)
        if filesystem.get_file_info(folder).type is fs.FileType.Directory:
            filesystem.delete_dir(folder)
        return
    # One request an object: servers beside AWS do not take every client's request for many.
    objects = open_objects(storage)
    with ThreadPoolExecutor(_DELETE_THREADS) as pool:
        list(pool.map(objects.delete, objects.list(f"{prefix}/")))
