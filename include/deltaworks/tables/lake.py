"""Opens, reads and appends to Delta tables of the lake without a JVM, and removes folders."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial, reduce
from operator import and_
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import fs

from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.arrow_types import rows_as_declared
from deltaworks.tables.commit import CommitOutcome, Step, commit_step, ensure_table, open_table, refresh
from deltaworks.tables.features import check_log_features, needs_scan, newest_protocol, unsupported_features_error
from deltaworks.tables.files import INT96_UNIT, read_parquet, split_by_partition, write_file
from deltaworks.tables.variant import with_marked_variants

_DELETE_THREADS = 16
_FOOTER_THREADS = 16
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
            try:
                yield [json.loads(line) for line in stored.data.splitlines() if line.strip()] if stored else []
            except ValueError:  # a damaged commit says nothing about features; its own error is raised
                return

    def ensure(
        self,
        key: str,
        schema: pa.Schema,
        *,
        user_metadata: str,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        description: str = "",
    ) -> DeltaTable:
        """Opens the table at `key`; creates it if it does not exist. Only a new table gets the description."""
        with self._unsupported_by_name(key):
            return ensure_table(
                self.storage.uri(key),
                schema,
                storage_options=self._options,
                partition_by=partition_by,
                user_metadata=user_metadata,
                properties=properties,
                description=description,
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


def parquet_format(dictionary_encoded: Collection[str] = ()) -> ds.ParquetFileFormat:
    """Returns the format of Parquet files in datasets, with the options of `open_parquet`.

    Args:
        dictionary_encoded: paths of columns to read as dictionary codes.
    """
    return ds.ParquetFileFormat(
        read_options=ds.ParquetReadOptions(
            dictionary_columns=list(dictionary_encoded), coerce_int96_timestamp_unit=INT96_UNIT
        ),
        default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True),
    )


class TableDataset(ds.FileSystemDataset):  # type: ignore[misc]
    """A table's files with the table's schema, also when rows are filtered.

    Arrow compares a filter with the bounds of a file's columns: those of the log, and those in the file's footer in the
    types of that file.

    - deltalake's own dataset takes a bound that the log lacks for a null, which no value is within, and so loses rows:
      NaN, year 9999, or a writer without statistics. So the bounds of the log are compared here.
    - Arrow cannot compare texts with the string views that delta-rs writes (MERGE, UPDATE, DELETE, OPTIMIZE), nor
      instants with times without a zone. So the footers of files that may match are read before they are filtered.
      Texts of such files are read through dictionaries, which takes about six times as long for a column of distinct
      texts, and only where they are filtered.
    """

    def __init__(self, fragments: Sequence[ds.Fragment], schema: pa.Schema, root: fs.FileSystem, added: pa.Table):
        super().__init__(fragments, schema, parquet_format(), root)
        self._fragments = list(fragments)
        self._added = added
        self._condition: pc.Expression | None = None

    def filter(self, expression: pc.Expression) -> TableDataset:
        """Returns the dataset with only the rows that match."""
        filtered = TableDataset(self._fragments, self.schema, self.filesystem, self._added)
        filtered._condition = expression if self._condition is None else self._condition & expression
        return filtered

    def replace_schema(self, schema: pa.Schema) -> TableDataset:
        """Returns the dataset with another schema."""
        replaced = TableDataset(self._fragments, schema, self.filesystem, self._added)
        replaced._condition = self._condition
        return replaced

    def scanner(self, columns: Any = None, filter: Any = None, **options: Any) -> ds.Scanner:
        """Returns a scanner of the rows that match `filter`. See pyarrow's `Dataset.scanner`."""
        conditions = [condition for condition in (self._condition, filter) if condition is not None]
        if not conditions:
            return super().scanner(columns=columns, **options)
        condition = conditions[0] if len(conditions) == 1 else conditions[0] & conditions[1]
        filtered = _referenced_fields(self.schema, condition)
        fragments = self._may_match(filtered, condition)
        has_comparable_statistics = True
        if any(_may_differ(field.type) for field in filtered):
            with ThreadPoolExecutor(_FOOTER_THREADS) as pool:
                schemas = list(pool.map(lambda fragment: fragment.physical_schema, fragments.values()))
            has_comparable_statistics = not any(map(partial(_lacks_zone, filtered), fragments.values()))
            for number, schema in zip(fragments, schemas, strict=True):
                if views := list(_view_paths(filtered, schema)):
                    fragments[number] = self._fragment(number, parquet_format(views), fragments[number])
        matching = ds.FileSystemDataset(list(fragments.values()), self.schema, self.format, self.filesystem)
        if has_comparable_statistics:
            return matching.scanner(columns=columns, filter=condition, **options)
        return ds.Scanner.from_batches(matching.scanner(**options).to_reader(), columns=columns, filter=condition)

    def _may_match(self, filtered: Sequence[pa.Field], condition: pc.Expression) -> dict[int, ds.Fragment]:
        """Returns the files that may have matching rows, by their number."""
        bounds = _file_bounds(self._added, filtered)
        bounded = [
            self._fragment(number, self.format, fragment, bounds.get(number))
            for number, fragment in enumerate(self._fragments)
        ]
        numbers = {fragment.path: number for number, fragment in enumerate(self._fragments)}
        dataset = ds.FileSystemDataset(bounded, self.schema, self.format, self.filesystem)
        matching = sorted(numbers[fragment.path] for fragment in dataset.get_fragments(filter=condition))
        return {number: self._fragments[number] for number in matching}

    def _fragment(
        self, number: int, file_format: ds.FileFormat, like: ds.Fragment, bounds: pc.Expression | None = None
    ) -> ds.Fragment:
        partition = like.partition_expression
        return file_format.make_fragment(
            like.path,
            filesystem=self.filesystem,
            partition_expression=partition if bounds is None else partition & bounds,
            file_size=self._added.column("size_bytes")[number].as_py(),
        )


def _file_bounds(added: pa.Table, fields: Sequence[pa.Field]) -> dict[int, pc.Expression]:
    """Returns the bounds of these columns in the log, by the number of the file. Columns inside structs have none."""
    bounds: dict[int, pc.Expression] = {}
    for field in fields:
        rows, nulls, low, high = _column_statistics(added, field)
        if nulls is None:
            continue
        column, is_null = ds.field(field.name), ds.field(field.name).is_null()
        for number, (row_count, null_count) in enumerate(zip(rows.to_pylist(), nulls.to_pylist(), strict=True)):
            claims = []
            if null_count == 0:
                claims.append(column.is_valid())
            elif null_count is not None and null_count == row_count:
                claims.append(is_null)
            if low is not None and low[number].is_valid:
                claims.append(column >= low[number] if null_count == 0 else (column >= low[number]) | is_null)
            if high is not None and high[number].is_valid:
                claims.append(column <= high[number] if null_count == 0 else (column <= high[number]) | is_null)
            if claims:
                bounds[number] = reduce(and_, claims, *([bounds[number]] if number in bounds else []))
    return bounds


def _column_statistics(
    added: pa.Table, field: pa.Field
) -> tuple[pa.Array, pa.Array | None, pa.Array | None, pa.Array | None]:
    """Returns the number of rows, the number of nulls, minimum and maximum of a column by file; None if unknown."""

    def of(name: str) -> pa.Array | None:
        if name not in added.column_names or pa.types.is_nested(field.type):
            return None
        values = added.column(name).combine_chunks()
        index = values.type.get_field_index(field.name)
        return None if index < 0 else pc.struct_field(values, [index])

    low, high = of("min"), of("max")
    if high is not None and pa.types.is_timestamp(field.type):
        # The log has milliseconds, rounded down.
        ends = pc.add(high.cast(pa.timestamp("us")).cast(pa.int64()), 999)
        high = ends.cast(pa.timestamp("us")).cast(pa.timestamp("us", tz=field.type.tz))
    rows = added.column("num_records").combine_chunks()
    return rows, of("null_count"), low, high


def _referenced_fields(schema: pa.Schema, condition: pc.Expression) -> list[pa.Field]:
    """Returns the fields that a condition may refer to: Arrow shows an expression, but not its fields."""
    text = str(condition)
    return [field for field in schema if field.name in text or "FieldPath(" in text]


def _may_differ(kind: pa.DataType) -> bool:
    """Returns whether a file may have this type in a form that cannot be compared with it."""
    checks = (pa.types.is_string, pa.types.is_binary, pa.types.is_timestamp, pa.types.is_struct)
    return any(check(kind) for check in checks)


def _view_paths(fields: Iterable[pa.Field], file_fields: pa.Schema | pa.StructType, prefix: str = "") -> Iterator[str]:
    """Yields the paths of a file's views of text and bytes. Items of lists and maps have no statistics of their own."""
    for field in fields:
        index = file_fields.get_field_index(field.name)
        if index < 0:
            continue
        kind = file_fields.field(index).type
        if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
            yield prefix + field.name
        elif pa.types.is_struct(kind):
            yield from _view_paths(kind.fields, kind, f"{prefix}{field.name}.")


def _lacks_zone(fields: Sequence[pa.Field], fragment: ds.Fragment) -> bool:
    """Returns whether a filtered time has a zone in the table and none in the file, or the reverse. Files have no
    statistics of INT96.
    """
    schema = fragment.physical_schema
    different = {name for field in fields for name in _zone_differences(field, schema, "")}
    if not different:
        return False
    columns = fragment.metadata.schema
    return any(
        columns.column(index).path in different and columns.column(index).physical_type != "INT96"
        for index in range(len(columns))
    )


def _zone_differences(field: pa.Field, file_fields: pa.Schema | pa.StructType, prefix: str) -> Iterator[str]:
    index = file_fields.get_field_index(field.name)
    kind = file_fields.field(index).type if index >= 0 else None
    if pa.types.is_timestamp(field.type) and kind is not None and pa.types.is_timestamp(kind):
        if (field.type.tz is None) != (kind.tz is None):
            yield prefix + field.name
    elif pa.types.is_struct(field.type) and kind is not None and pa.types.is_struct(kind):
        for inner in field.type.fields:
            yield from _zone_differences(inner, kind, f"{prefix}{field.name}.")


def dataset_of(lake: Lake, table: DeltaTable) -> TableDataset:
    """Returns the open table as a pyarrow dataset, at its open version.

    Files are read by Arrow's own file system. deltalake's default passes a Python object per file; if Arrow's threads
    drop the last one after the interpreter has shut down, the process aborts. File sizes come from the log, which saves
    requests to S3.

    Raises:
        DeltaProtocolError: the table has deletion vectors, or another feature that a dataset does not support.
    """
    # Raises for features that cannot be read this way; the files are listed below.
    schema = table.to_pyarrow_dataset(filesystem=lake.filesystem, file_pruning_predicate="1 = 2").schema
    return _dataset(lake, table, schema)


def _dataset(lake: Lake, table: DeltaTable, schema: pa.Schema) -> TableDataset:
    address = urlparse(table.table_uri)
    root = unquote(address.netloc + address.path).rstrip("/")
    added, file_format = pa.table(table.get_add_actions()), parquet_format()
    # Paths are URL-encoded in the log, but not in a dataset. They are complete, so that Arrow's errors name the table.
    paths = [f"{root}/{unquote(path)}" for path in added.column("path").to_pylist()]
    fragments = [
        file_format.make_fragment(path, filesystem=lake.filesystem, partition_expression=partition, file_size=size)
        for path, partition, size in zip(
            paths, _partitions(added, schema), added.column("size_bytes").to_pylist(), strict=True
        )
    ]
    return TableDataset(fragments, schema, lake.filesystem, added)


def _partitions(added: pa.Table, schema: pa.Schema) -> list[pc.Expression]:
    """Returns the partition of each added file."""
    expressions = [pc.scalar(True)] * added.num_rows
    columns = added.column("partition").combine_chunks() if "partition" in added.column_names else None
    for index, field in enumerate([] if columns is None else columns.type.fields):
        column = ds.field(field.name)
        values = pc.struct_field(columns, [index]).cast(schema.field(field.name).type)
        for number, value in enumerate(values):
            is_value = column == value if value.is_valid else column.is_null()
            expressions[number] = is_value if index == 0 else expressions[number] & is_value
    return expressions


def rows_of(lake: Lake, table: DeltaTable, *, columns: Sequence[str] | None = None, filters: Any = None) -> pa.Table:
    """Reads the rows of the open table that match `filters`, a pyarrow expression."""
    names = list(columns) if columns else None
    if not needs_scan(table):
        return dataset_of(lake, table).to_table(columns=names, filter=filters)
    parts = (pa.Table.from_batches([batch]) for batch in _batches_without_deleted(lake, table))
    matching = [part if filters is None else part.filter(filters) for part in parts]
    rows = pa.concat_tables([_schema_of(table).empty_table(), *matching])
    return rows if names is None else rows.select(names)


def iter_row_batches(lake: Lake, table: DeltaTable, *, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yields all rows of the open table, one batch at a time."""
    names = list(columns)
    if needs_scan(table):
        batches = (batch.select(names) for batch in _batches_without_deleted(lake, table))
    else:
        batches = dataset_of(lake, table).scanner(columns=names).to_batches()
    for batch in batches:
        if batch.num_rows:
            yield pa.Table.from_batches([batch])


def duckdb_source(lake: Lake, table: DeltaTable) -> Any:
    """Returns the open table as an object that DuckDB can register and scan repeatedly."""
    if needs_scan(table):
        return _ScanStream(lake, table)
    dataset = dataset_of(lake, table)
    return dataset.replace_schema(with_marked_variants(dataset.schema, table.schema()))


class _ScanStream:
    """A table that its dataset rejects, as an Arrow stream. Each scan reads the table again."""

    def __init__(self, lake: Lake, table: DeltaTable) -> None:
        self._lake, self._table = lake, table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        schema, batches = _schema_of(self._table), _batches_without_deleted(self._lake, self._table)
        marked = with_marked_variants(schema, self._table.schema())
        return pa.RecordBatchReader.from_batches(schema, batches).cast(marked).__arrow_c_stream__(requested_schema)


def _schema_of(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def _batches_without_deleted(lake: Lake, table: DeltaTable) -> Iterator[pa.RecordBatch]:
    """Yields all rows of a table with deletion vectors. Takes memory for a value per row of the files that have one."""
    schema = _schema_of(table)
    vectors = pa.table(table.deletion_vectors())
    masks = {
        unquote(path): mask.values
        for path, mask in zip(vectors.column("filepath").to_pylist(), vectors.column("selection_vector"), strict=True)
    }
    scheme, separator, _ = table.table_uri.rpartition("://")
    fragments = {
        f"{scheme}{separator}{fragment.path}": fragment for fragment in _dataset(lake, table, schema).get_fragments()
    }
    if _has_column_mapping(table) or not masks.keys() <= fragments.keys():
        # delta-rs maps names of columns and resolves files of other tables, but reads INT96 in nanoseconds.
        yield from pa.RecordBatchReader.from_stream(table.scan()).cast(schema)
        return
    for path, fragment in fragments.items():
        mask, start = masks.get(path), 0
        for batch in fragment.to_batches(schema=schema):
            end = start + batch.num_rows
            yield batch if mask is None else batch.filter(_mask_of_rows(mask, start, end))
            start = end


def _has_column_mapping(table: DeltaTable) -> bool:
    return table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"


def _mask_of_rows(mask: pa.Array, start: int, end: int) -> pa.Array:
    """Returns a part of a mask. Rows after its end are not deleted."""
    part = mask.slice(start, end - start)
    rest = pa.array([True] * (end - start - len(part)), pa.bool_())
    return pa.concat_arrays([part.cast(pa.bool_()), rest])


def select_rows(
    lake: Lake, key: str, table: DeltaTable, *, columns: Sequence[str], values: Mapping[str, Sequence[Any]]
) -> list[dict[str, Any]]:
    """Reads the rows whose columns have one of the given values, from an unpartitioned table at its newest version.

    A row must match in every column of `values`. Files whose statistics exclude all values are not opened.
    """
    refresh(table)
    schema = pa.schema(table.schema().to_arrow())
    read = pa.schema([schema.field(name) for name in sorted({*columns, *values})])
    root = arrow_path(lake.storage, key)
    matching_rows: list[dict[str, Any]] = []
    for path in _candidate_paths(table, values):
        with lake.filesystem.open_input_file(f"{root}/{path}") as source:
            batches = read_parquet(source, columns=read.names).to_batches()
        rows = pa.Table.from_batches([rows_as_declared(batch, read) for batch in batches], schema=read)
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
