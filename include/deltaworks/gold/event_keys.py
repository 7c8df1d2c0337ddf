"""The keys of events in a table's files, read in the driver and remembered by file.

A build that runs again every half minute finds few files that it has not seen: files never change, so only those are
opened, and which rows are copies is decided in memory. What is large, spread or not plain is left to Spark.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from deltaworks.gold.copies import ARRIVAL, Numbers, copies_of_rows
from deltaworks.gold.file_scan import AddedFile, Scan, added_files, is_plain
from deltaworks.gold.parts import DATE_COLUMN, TIME_COLUMN, Part
from deltaworks.tables.compaction import as_type
from deltaworks.tables.files import whole_file
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import lies_elsewhere

#: Keys that are looked through in the driver at most.
MOST_KEYS: Final = 2_000_000
#: Of files not seen before. Spark reads more than these in parallel, on other machines perhaps.
MOST_UNREAD_BYTES: Final = 96 << 20
#: Of keys, however long they are.
MOST_BYTES: Final = 256 << 20
#: What is remembered of all tables together.
REMEMBERED_BYTES: Final = 128 << 20
#: Files up to this size are read by one request.
_WHOLE_BYTES: Final = 4 << 20
_READERS: Final = 4
_MICROSECONDS_PER_HOUR: Final = 3_600_000_000


class _ForSpark(Exception):
    """Files whose keys cannot be taken by the driver."""


@dataclass(frozen=True, slots=True)
class _Place:
    """What is read of a file: of which table, which column has the keys, and whether hours are wanted."""

    table: str
    path: str
    by: str
    hours: bool


class RememberedKeys:
    """Keys by file, the least recently used given up first. Safe to share between threads."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._rows: OrderedDict[_Place, pa.Table] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, place: _Place) -> pa.Table | None:
        """What is remembered of a file."""
        with self._lock:
            rows = self._rows.get(place)
            if rows is not None:
                self._rows.move_to_end(place)
            return rows

    def put(self, place: _Place, rows: pa.Table) -> None:
        """Remember a file."""
        with self._lock:
            self._forget(place)
            self._rows[place] = rows
            self._bytes += rows.nbytes
            while self._bytes > self._most_bytes:
                self._forget(next(iter(self._rows)))

    def keep(self, table: str, paths: Collection[str]) -> None:
        """Forget what is no file of the table any more: it was merged, or somebody was erased from it."""
        with self._lock:
            for place in [place for place in self._rows if place.table == table and place.path not in paths]:
                self._forget(place)

    def _forget(self, place: _Place) -> None:
        rows = self._rows.pop(place, None)
        self._bytes -= 0 if rows is None else rows.nbytes


_REMEMBERED = RememberedKeys(REMEMBERED_BYTES)


def copies_by_driver(
    lake: Lake,
    table: DeltaTable,
    scan: Scan,
    part: Part,
    *,
    by: str,
    across: int,
    remembered: RememberedKeys = _REMEMBERED,
) -> tuple[pa.Table, dict[Any, int]] | None:
    """The copies in `part`, by ARRIVAL, and how many there are of each date or hour; None where Spark has to find them.

    Args:
        table: open at its version, with rows of events that nobody marks as deleted.
        scan: of the rows among which it is decided.
        by: the column with the keys.
        across: how far apart copies may lie, in dates or hours.
    """
    if scan.column != DATE_COLUMN or scan.part.since is not None or not is_plain(table):
        return None
    if part.by_hours and scan.time_column != TIME_COLUMN:
        return None
    files = list(added_files(table, scan))
    if any(file.rows is None or file.date is None for file in files) or sum(f.rows or 0 for f in files) > MOST_KEYS:
        return None
    reader = _Reader(lake, table, scan.key, by=by, hours=part.by_hours, remembered=remembered)
    try:
        return copies_of_rows(*reader.rows_of(files), part, across=across)
    except (_ForSpark, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    finally:
        remembered.keep(reader.root, set(pa.table(table.get_add_actions()).column("path").to_pylist()))


class _Reader:
    """Reads the keys of files of one table."""

    def __init__(
        self, lake: Lake, table: DeltaTable, key: str, *, by: str, hours: bool, remembered: RememberedKeys
    ) -> None:
        self.root = arrow_path(lake.storage, key)
        self._lake, self._by, self._hours, self._remembered = lake, by, hours, remembered
        names = [by, *ARRIVAL, *([TIME_COLUMN] if hours else [])]
        columns = pa.schema(table.schema().to_arrow())
        if not set(names) <= set(columns.names):
            names = []
        self._columns = pa.schema([columns.field(name) for name in names])

    def rows_of(self, files: Sequence[AddedFile]) -> tuple[pa.Table, Numbers]:
        """The rows with a key, and the day or hour of each."""
        if not self._columns.names or not _is_compared(self._columns.field(self._by).type):
            raise _ForSpark
        places = [_Place(self.root, file.path, self._by, self._hours) for file in files]
        rows = {place: kept for place in places if (kept := self._remembered.get(place)) is not None}
        unread = [(place, file) for place, file in zip(places, files, strict=True) if place not in rows]
        if sum(file.size for _, file in unread) > MOST_UNREAD_BYTES:
            raise _ForSpark
        with ThreadPoolExecutor(_READERS) as pool:
            for (place, _), read in zip(unread, pool.map(self._read, (file for _, file in unread)), strict=True):
                self._remembered.put(place, read)
                rows[place] = read
        if sum(kept.nbytes for kept in rows.values()) > MOST_BYTES:
            raise _ForSpark
        near = [self._near(rows[place], file) for place, file in zip(places, files, strict=True)]
        together = pa.concat_tables([self._columns.empty_table(), *(rows[place] for place in places)])
        return together, np.concatenate([np.empty(0, np.int64), *near])

    def _read(self, file: AddedFile) -> pa.Table:
        if lies_elsewhere(file.path):
            raise _ForSpark
        path = f"{self.root}/{unquote(file.path)}"
        if file.size <= _WHOLE_BYTES:
            rows = self._columns_of(whole_file(self._lake.filesystem, path))
        else:
            with self._lake.filesystem.open_input_file(path) as source:
                rows = self._columns_of(pq.ParquetFile(source, coerce_int96_timestamp_unit="us", pre_buffer=True))
        if rows.num_rows != file.rows:
            raise _ForSpark
        return rows.filter(pc.is_valid(rows.column(self._by)))

    def _columns_of(self, file: pq.ParquetFile) -> pa.Table:
        if not set(self._columns.names) <= set(file.schema_arrow.names):
            raise _ForSpark
        rows = file.read(columns=self._columns.names)
        arrays = [as_type(rows.column(column.name).combine_chunks(), column.type) for column in self._columns]
        return pa.Table.from_arrays(arrays, schema=self._columns)

    def _near(self, rows: pa.Table, file: AddedFile) -> Numbers:
        if not self._hours:
            days = 0 if file.date is None else (file.date - dt.date(1970, 1, 1)).days
            return np.full(rows.num_rows, days, np.int64)
        times = rows.column(TIME_COLUMN)
        if times.null_count:
            raise _ForSpark
        instants: Numbers = times.cast(pa.int64()).to_numpy()
        return instants // _MICROSECONDS_PER_HOUR


def _is_compared(kind: pa.DataType) -> bool:
    """Whether two keys are the same to Arrow where they are to Spark."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind))
