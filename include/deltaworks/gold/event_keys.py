"""Finds duplicate events: rows whose key arrived earlier within the dedupe window.

The window is a number of dates or hours; rows are ordered by `_seq`, then `_position`. Spark uses a window function,
which sorts all rows by key. In the driver, Arrow maps keys to integers, and only keys that occur more than once are
compared.

The driver caches the keys of each data file. Data files are immutable, so a build that repeats every half minute reads
only the few new ones. Large inputs, and tables that need Spark's reader, are left to Spark.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from deltaworks.gold.file_scan import AddedFile, FileScan, added_files, has_plain_files
from deltaworks.gold.parts import DATE_COLUMN, TIME_COLUMN, Part, window_size
from deltaworks.specs.gold import DedupeSpec
from deltaworks.tables.arrow_types import rows_as_declared
from deltaworks.tables.files import open_data_file, open_parquet
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import is_absolute_path

#: Columns that identify a row of a table and order rows by arrival.
ARRIVAL = ("_seq", "_position")
_HOUR_SECONDS = 3_600
_EPOCH = date(1970, 1, 1)
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Duplicate rows of a part of an input, identified by the ARRIVAL columns, with counts per date, hour or partition
    value.
    """

    rows: DataFrame
    count_by_value: Mapping[Any, int]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Rows as arrays: the integer of the key, the bucket (days or hours since 1970), `_seq` and `_position`."""

    keys: Int64Array
    buckets: Int64Array
    seqs: Int64Array
    positions: Int64Array

    def take(self, indices: Int64Array) -> Arrivals:
        """Returns the rows at these indices."""
        return Arrivals(self.keys[indices], self.buckets[indices], self.seqs[indices], self.positions[indices])


def find_duplicates(rows: Arrivals, window: int) -> Int64Array:
    """Returns the indices of duplicate rows, ascending.

    Args:
        window: the dedupe window in buckets.
    """
    counts = np.bincount(rows.keys)
    candidates = np.flatnonzero(counts[rows.keys] > 1)
    if not len(candidates):
        return candidates
    shared = rows.take(candidates)
    ranks = _arrival_ranks(shared.seqs, shared.positions)
    # Find the earliest row of each key and bucket: group numbers of neighbouring buckets of a key are consecutive.
    first_bucket = int(shared.buckets.min())
    bucket_span = int(shared.buckets.max()) - first_bucket
    window = min(window, bucket_span)
    group_numbers = shared.keys * (bucket_span + 2 * window + 1) + (shared.buckets - first_bucket + window)
    order = np.lexsort((ranks, group_numbers))
    groups, starts, group_of = np.unique(group_numbers[order], return_index=True, return_inverse=True)
    earliest = ranks[order][starts]
    earliest_in_window = earliest.copy()
    for offset in range(-window, window + 1):
        neighbour = np.minimum(np.searchsorted(groups, groups + offset), len(groups) - 1)
        exists = groups[neighbour] == groups + offset
        earliest_in_window[exists] = np.minimum(earliest_in_window[exists], earliest[neighbour[exists]])
    is_duplicate = np.empty(len(candidates), np.bool_)
    is_duplicate[order] = ranks[order] > earliest_in_window[group_of]
    return candidates[is_duplicate]


def _arrival_ranks(seqs: Int64Array, positions: Int64Array) -> Int64Array:
    """Ranks rows by arrival; rows with equal `_seq` and `_position` share a rank."""
    order = np.lexsort((positions, seqs))
    later = (np.diff(seqs[order]) != 0) | (np.diff(positions[order]) != 0)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.concatenate(([0], np.cumsum(later)))
    return ranks


def find_duplicates_in_rows(
    rows: pa.Table, buckets: Int64Array, part: Part, *, window: int
) -> tuple[pa.Table, dict[Any, int]]:
    """Returns the ARRIVAL columns of the duplicate rows of a part, and their count per date or hour.

    Args:
        rows: the non-null keys in the first column, then the ARRIVAL columns.
        buckets: the day or hour of each row.
        window: the dedupe window in buckets.
    """
    keys = rows.column(0).combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    seqs, positions = (rows.column(name).to_numpy().astype(np.int64) for name in ARRIVAL)
    duplicates = find_duplicates(Arrivals(keys, buckets, seqs, positions), window)
    numbers, counts = np.unique(buckets[duplicates], return_counts=True)
    values = [hour_from_number(number) if part.is_hourly else _EPOCH + timedelta(number) for number in numbers.tolist()]
    is_in_part = np.array([part.contains(value) for value in values], np.bool_)
    duplicates = duplicates[np.isin(buckets[duplicates], numbers[is_in_part])]
    count_by_value = {
        value: count for value, count, has in zip(values, counts.tolist(), is_in_part, strict=True) if has
    }
    return rows.select(ARRIVAL).take(duplicates), count_by_value


def hour_from_number(number: int) -> datetime:
    """Returns the start of the hour with this number of hours since 1970."""
    return datetime.fromtimestamp(number * _HOUR_SECONDS, UTC)


def find_duplicates_with_spark(rows: DataFrame, part: Part, dedupe: DedupeSpec) -> DataFrame:
    """Returns the ARRIVAL columns of duplicate rows, each with its date, hour or partition value in `_value`.

    Args:
        rows: the rows of `dedupe_window_part` of the part.
    """
    by_date = part.column == DATE_COLUMN
    bucket = F.floor(F.unix_seconds(F.col(TIME_COLUMN)) / _HOUR_SECONDS) if part.is_hourly else F.unix_date(DATE_COLUMN)
    arrival, window = F.struct(*ARRIVAL), window_size(dedupe, part)
    neighbours = (
        Window.partitionBy(dedupe.by, *([] if by_date else [part.column])).orderBy(bucket).rangeBetween(-window, window)
    )
    return (
        rows.filter(F.col(dedupe.by).isNotNull())
        .select(*{dedupe.by, DATE_COLUMN, part.column, *ARRIVAL, *([TIME_COLUMN] if part.is_hourly else [])})
        .withColumn("_first", F.min(arrival).over(neighbours))
        .filter(arrival > F.col("_first"))
        .withColumn("_value", bucket if part.is_hourly else F.col(part.column))
    )


#: Most keys that are compared in the driver.
MAX_KEYS: Final = 2_000_000
#: Most bytes of uncached files. Spark reads larger amounts in parallel.
MAX_UNCACHED_BYTES: Final = 96 << 20
#: Most bytes of all keys of one input.
MAX_KEY_BYTES: Final = 256 << 20
#: Size of the key cache of the process.
KEY_CACHE_BYTES: Final = 128 << 20
#: Files up to this size are read with one request.
_SINGLE_REQUEST_BYTES: Final = 4 << 20
_READER_THREADS: Final = 4
_MICROSECONDS_PER_HOUR: Final = 3_600_000_000


class _NeedsSparkError(Exception):
    """Raised if Spark must read the keys, because files are too many, too large or of an unsupported kind."""


@dataclass(frozen=True, slots=True)
class _CacheKey:
    """Identifies the cached keys of a file: table, path, key column, and whether event times are included."""

    table: str
    path: str
    key_column: str
    with_hours: bool


class KeyCache:
    """LRU cache of event keys by data file. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._rows: OrderedDict[_CacheKey, pa.Table] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: _CacheKey) -> pa.Table | None:
        """Returns the cached keys of a file, or None."""
        with self._lock:
            rows = self._rows.get(key)
            if rows is not None:
                self._rows.move_to_end(key)
            return rows

    def put(self, key: _CacheKey, rows: pa.Table) -> None:
        """Caches the keys of a file, and evicts the least recently used files beyond the size limit."""
        with self._lock:
            self._evict(key)
            self._rows[key] = rows
            self._bytes += rows.nbytes
            while self._bytes > self._max_bytes:
                self._evict(next(iter(self._rows)))

    def retain(self, table: str, paths: Collection[str]) -> None:
        """Evicts the files of a table that are not among these paths, because they were compacted or rewritten by an
        erasure.
        """
        with self._lock:
            for key in [key for key in self._rows if key.table == table and key.path not in paths]:
                self._evict(key)

    def _evict(self, key: _CacheKey) -> None:
        rows = self._rows.pop(key, None)
        self._bytes -= 0 if rows is None else rows.nbytes


_KEY_CACHE = KeyCache(KEY_CACHE_BYTES)


def find_duplicates_in_driver(
    lake: Lake,
    table: DeltaTable,
    scan: FileScan,
    part: Part,
    *,
    key_column: str,
    window: int,
    cache: KeyCache = _KEY_CACHE,
) -> tuple[pa.Table, dict[Any, int]] | None:
    """Finds the duplicates of a part in the driver.

    Returns their ARRIVAL columns and their count per date or hour, or None if Spark must find them.

    Args:
        table: opened at its version; an event table without deletion vectors.
        scan: the files of the part, widened by the dedupe window.
        key_column: the column with the event keys.
        window: the dedupe window, in dates or hours.
    """
    if scan.column != DATE_COLUMN or scan.part.since is not None or not has_plain_files(table):
        return None
    if part.is_hourly and scan.time_column != TIME_COLUMN:
        return None
    files = list(added_files(table, scan))
    if any(file.rows is None or file.date is None for file in files) or sum(f.rows or 0 for f in files) > MAX_KEYS:
        return None
    reader = _KeyReader(lake, table, scan.key, key_column=key_column, with_hours=part.is_hourly, cache=cache)
    try:
        return find_duplicates_in_rows(*reader.read_rows(files), part, window=window)
    except (_NeedsSparkError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    finally:
        cache.retain(reader.root, set(pa.table(table.get_add_actions()).column("path").to_pylist()))


class _KeyReader:
    """Reads event keys from the data files of one table."""

    def __init__(
        self, lake: Lake, table: DeltaTable, key: str, *, key_column: str, with_hours: bool, cache: KeyCache
    ) -> None:
        self.root = arrow_path(lake.storage, key)
        self._lake, self._key_column, self._with_hours, self._cache = lake, key_column, with_hours, cache
        names = [key_column, *ARRIVAL, *([TIME_COLUMN] if with_hours else [])]
        columns = pa.schema(table.schema().to_arrow())
        if not set(names) <= set(columns.names):
            names = []
        self._columns = pa.schema([columns.field(name) for name in names])

    def read_rows(self, files: Sequence[AddedFile]) -> tuple[pa.Table, Int64Array]:
        """Returns the rows that have a key, and the day or hour of each row."""
        if not self._columns.names or not _is_comparable(self._columns.field(self._key_column).type):
            raise _NeedsSparkError
        keys = [_CacheKey(self.root, file.path, self._key_column, self._with_hours) for file in files]
        rows = {key: cached_rows for key in keys if (cached_rows := self._cache.get(key)) is not None}
        uncached = [(key, file) for key, file in zip(keys, files, strict=True) if key not in rows]
        if sum(file.size for _, file in uncached) > MAX_UNCACHED_BYTES:
            raise _NeedsSparkError
        with ThreadPoolExecutor(_READER_THREADS) as pool:
            for (key, _), new_rows in zip(uncached, pool.map(self._read, (file for _, file in uncached)), strict=True):
                self._cache.put(key, new_rows)
                rows[key] = new_rows
        if sum(cached_rows.nbytes for cached_rows in rows.values()) > MAX_KEY_BYTES:
            raise _NeedsSparkError
        buckets = [self._bucket_numbers(rows[key], file) for key, file in zip(keys, files, strict=True)]
        all_rows = pa.concat_tables([self._columns.empty_table(), *(rows[key] for key in keys)])
        return all_rows, np.concatenate([np.empty(0, np.int64), *buckets])

    def _read(self, file: AddedFile) -> pa.Table:
        if is_absolute_path(file.path):
            raise _NeedsSparkError
        path = f"{self.root}/{unquote(file.path)}"
        with open_data_file(
            self._lake.filesystem, path, file.size, single_request_bytes=_SINGLE_REQUEST_BYTES
        ) as source:
            rows = self._read_columns(open_parquet(source, pre_buffer=True))
        if rows.num_rows != file.rows:
            raise _NeedsSparkError
        return rows.filter(pc.is_valid(rows.column(self._key_column)))

    def _read_columns(self, file: pq.ParquetFile) -> pa.Table:
        if not set(self._columns.names) <= set(file.schema_arrow.names):
            raise _NeedsSparkError
        rows = file.read(columns=self._columns.names)
        batches = [rows_as_declared(batch, self._columns) for batch in rows.to_batches()]
        return pa.Table.from_batches(batches, schema=self._columns)

    def _bucket_numbers(self, rows: pa.Table, file: AddedFile) -> Int64Array:
        if not self._with_hours:
            days = 0 if file.date is None else (file.date - dt.date(1970, 1, 1)).days
            return np.full(rows.num_rows, days, np.int64)
        times = rows.column(TIME_COLUMN)
        if times.null_count:
            raise _NeedsSparkError
        instants: Int64Array = times.cast(pa.int64()).to_numpy()
        return instants // _MICROSECONDS_PER_HOUR


def _is_comparable(kind: pa.DataType) -> bool:
    """Whether Arrow and Spark compare keys of this type in the same way."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind))
