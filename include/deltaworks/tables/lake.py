"""Opens, reads and appends to Delta tables of the lake without a JVM, and removes folders."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import fs

from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.commit import CommitOutcome, Step, commit_step, ensure_table, open_table, refresh
from deltaworks.tables.features import check_log_features, needs_scan, newest_protocol, unsupported_features_error
from deltaworks.tables.files import split_by_partition, write_file

_DELETE_THREADS = 16
_COMMIT = re.compile(r"/_delta_log/\d{20}\.json$")
#: Matches errors of delta-rs about features of tables that it does not open.
_UNSUPPORTED = re.compile(r"[Uu]nsupported|catalog-managed")


def arrow_filesystem(storage: StorageSpec) -> fs.FileSystem:
    """Returns pyarrow's filesystem for a storage."""
    return fs.LocalFileSystem() if storage.scheme == "file" else fs.S3FileSystem(**storage.arrow_options())


def arrow_path(storage: StorageSpec, key: str) -> str:
    """Returns the path of `key` for `arrow_filesystem`."""
    if storage.scheme == "file":
        return f"{storage.prefix}/{key}"
    return "/".join(part for part in (storage.bucket, storage.prefix, key) if part)


class Lake:
    """The Delta tables of one storage, by object key. Not thread-safe: create one instance per thread."""

    def __init__(self, storage: StorageSpec) -> None:
        self.storage = storage
        self._options = storage.deltalake_options()
        self._filesystem: fs.FileSystem | None = None
        self._objects: ObjectStore | None = None

    @property
    def filesystem(self) -> fs.FileSystem:
        """pyarrow's filesystem for the storage, opened on first use."""
        if self._filesystem is None:
            self._filesystem = arrow_filesystem(self.storage)
        return self._filesystem

    @property
    def objects(self) -> ObjectStore:
        """The storage's object store, opened on first use."""
        if self._objects is None:
            self._objects = open_objects(self.storage)
        return self._objects

    def open(self, key: str) -> DeltaTable | None:
        """Opens the table at `key`; None if it does not exist.

        Raises:
            ContractError: TABLE_FEATURE_UNSUPPORTED.
        """
        try:
            with self._unsupported_by_name(key):
                return open_table(self.storage.uri(key), storage_options=self._options)
        except TableNotFoundError:
            return None

    @contextmanager
    def _unsupported_by_name(self, key: str) -> Iterator[None]:
        """Raises by name if delta-rs fails to open a table because of its features."""
        try:
            yield
        except TableNotFoundError:
            raise
        except DeltaError as error:
            check_log_features(key, newest_protocol(self._newest_commits(key)))
            if _UNSUPPORTED.search(str(error)):
                raise unsupported_features_error(key, f"a feature that delta-rs rejects: {error}") from error
            raise

    def _newest_commits(self, key: str) -> Iterator[list[dict[str, Any]]]:
        names = [name for name in self.objects.list(f"{key}/_delta_log/") if _COMMIT.search(name)]
        for name in sorted(names, reverse=True):
            stored = self.objects.get(name)
            yield [json.loads(line) for line in stored.data.splitlines() if line.strip()] if stored else []

    def ensure(
        self,
        key: str,
        schema: pa.Schema,
        *,
        user_metadata: str,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> DeltaTable:
        """Opens the table at `key`; creates it if it does not exist."""
        with self._unsupported_by_name(key):
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
        """Writes `rows` as files of the table and commits them as one step."""
        root = arrow_path(self.storage, key)
        parts = split_by_partition(rows, table.metadata().partition_columns) if rows.num_rows else []
        files = [write_file(self.filesystem, root, part, partition=values) for values, part in parts]
        actions = [file.add_action() for file in files]
        return commit_step(table, actions, step=step, owner=owner, user_metadata=user_metadata)

    def rows(self, key: str, *, columns: Sequence[str] | None = None, filters: Any = None) -> pa.Table | None:
        """Reads the table's rows; None if the table does not exist."""
        table = self.open(key)
        return None if table is None else rows_of(self, table, columns=columns, filters=filters)


def dataset_of(lake: Lake, table: DeltaTable) -> ds.Dataset:
    """Returns the open table as a pyarrow dataset, at its open version.

    Files are read by Arrow's own file system. deltalake's default passes a Python object per file; if Arrow's threads
    drop the last one after the interpreter has shut down, the process aborts. File sizes come from the log, which saves
    requests to S3.

    Raises:
        DeltaProtocolError: the table has deletion vectors, or another feature that a dataset does not support.
    """
    address = urlparse(table.table_uri)
    root = fs.SubTreeFileSystem(unquote(address.netloc + address.path).rstrip("/"), lake.filesystem)
    dataset = table.to_pyarrow_dataset(filesystem=root)
    added = pa.table(table.get_add_actions())
    # Paths are URL-encoded in the log, but not in a dataset.
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
    """Reads the rows of the open table that match `filters`, a pyarrow expression."""
    names = list(columns) if columns else None
    if not needs_scan(table):
        return dataset_of(lake, table).to_table(columns=names, filter=filters)
    return ds.Scanner.from_batches(_scan_batches(table), columns=names, filter=filters).to_table()


def iter_row_batches(lake: Lake, table: DeltaTable, *, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yields all rows of the open table, one batch at a time."""
    if needs_scan(table):
        scanner = ds.Scanner.from_batches(_scan_batches(table), columns=list(columns))
    else:
        scanner = dataset_of(lake, table).scanner(columns=list(columns))
    for batch in scanner.to_batches():
        if batch.num_rows:
            yield pa.Table.from_batches([batch])


def duckdb_source(lake: Lake, table: DeltaTable) -> Any:
    """Returns the open table as an object that DuckDB can register and scan repeatedly."""
    return _ScanStream(table) if needs_scan(table) else dataset_of(lake, table)


class _ScanStream:
    """A table that its dataset rejects, as an Arrow stream. Each scan reads the table again."""

    def __init__(self, table: DeltaTable) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return _scan_batches(self._table).__arrow_c_stream__(requested_schema)


def _scan_batches(table: DeltaTable) -> pa.RecordBatchReader:
    # delta-rs returns string views, which pyarrow's filters do not support.
    return pa.RecordBatchReader.from_stream(table.scan()).cast(pa.schema(table.schema().to_arrow()))


def select_rows(
    lake: Lake, key: str, table: DeltaTable, *, columns: Sequence[str], values: Mapping[str, Sequence[Any]]
) -> list[dict[str, Any]]:
    """Reads the rows whose columns have one of the given values, from an unpartitioned table at its newest version.

    A row must match in every column of `values`. Files whose statistics exclude all values are not opened.
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
            matches = pc.is_in(rows.column(name), value_set=pa.array(accepted, kind))
            mask = matches if mask is None else pc.and_(mask, matches)
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
        may_match_any = pa.chunked_array([pa.array([False] * files.num_rows)])
        for value in accepted:
            may_match = pc.and_(pc.less_equal(minimum, value), pc.greater_equal(maximum, value))
            # A file without statistics may contain any value.
            may_match_any = pc.or_(may_match_any, pc.fill_null(may_match, True))
        mask = pc.and_(mask, may_match_any)
    paths: list[str] = files.filter(mask).column("path").to_pylist()
    return paths


def remove_folder(storage: StorageSpec, prefix: str) -> None:
    """Deletes all objects below `prefix`, in any order. Does nothing if there are none."""
    if storage.scheme == "file":
        filesystem, folder = arrow_filesystem(storage), arrow_path(storage, prefix)
        if filesystem.get_file_info(folder).type is fs.FileType.Directory:
            filesystem.delete_dir(folder)
        return
    # One request per object: not every S3-compatible server accepts bulk deletes from every client.
    objects = open_objects(storage)
    with ThreadPoolExecutor(_DELETE_THREADS) as pool:
        list(pool.map(objects.delete, objects.list(f"{prefix}/")))
