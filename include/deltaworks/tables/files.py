"""Parquet files of a Delta table, written by us: one file with its add action, statistics included.

Statistics follow the Delta protocol: row count, null count, min and max per leaf column; long strings are cut to
`STRING_PREFIX` characters, a maximum so that it still bounds what it stands for.
"""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction
from pyarrow import fs

STRING_PREFIX = 32
STATISTICS_COLUMNS = 32
_LARGEST_CHARACTER = "\U0010ffff"
_EXACT = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_timestamp,
)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """One data file, as a prepared batch records it. `partition` values are strings, None for null."""

    path: str
    size: int
    rows: int
    partition: dict[str, str | None]
    stats: str

    def add_action(self) -> AddAction:
        """The action that makes the file part of the table."""
        return AddAction(
            path=self.path,
            size=self.size,
            partition_values=self.partition,
            modification_time=int(time.time() * 1000),
            data_change=True,
            stats=self.stats,
        )


def data_file_path(partition: Mapping[str, str | None], *, prefix: str = "part") -> str:
    """A new, unique path below the table's root, Hive-style for its partition."""
    folders = [f"{name}={_folder_text(value)}" for name, value in partition.items()]
    return "/".join([*folders, f"{prefix}-{uuid.uuid4()}.zstd.parquet"])


def _folder_text(value: str | None) -> str:
    """A folder name for a partition value. Readers take values from the log, so an awkward one is just hashed:
    that way no client's idea of escaping in paths matters."""
    if value is None:
        return "__HIVE_DEFAULT_PARTITION__"
    if re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", value):
        return value
    return "~" + hashlib.blake2b(value.encode(), digest_size=8).hexdigest()


def write_file(
    filesystem: fs.FileSystem, root: str, data: pa.Table, *, partition: Mapping[str, str | None]
) -> WrittenFile:
    """Write `data`, without its partition columns, as one file below `root`.

    Args:
        root: the table's folder in terms of `filesystem` (bucket/key, or an absolute path).
    """
    body = data.drop_columns(list(partition)) if partition else data
    path = data_file_path(partition)
    target = f"{root}/{path}"
    if isinstance(filesystem, fs.LocalFileSystem):
        filesystem.create_dir(target.rpartition("/")[0], recursive=True)
    sink = pa.BufferOutputStream()
    pq.write_table(body, sink, compression="zstd", compression_level=1, version="2.6", write_statistics=True)
    buffer = sink.getvalue()
    with filesystem.open_output_stream(target) as stream:
        stream.write(buffer)
    return WrittenFile(
        path=path, size=buffer.size, rows=body.num_rows, partition=dict(partition), stats=statistics(body)
    )


def statistics(data: pa.Table) -> str:
    """The add action's `stats` for the first STATISTICS_COLUMNS columns."""
    minimum: dict[str, Any] = {}
    maximum: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for name in data.column_names[:STATISTICS_COLUMNS]:
        _collect(name, data.column(name), minimum, maximum, nulls)
    record = {"numRecords": data.num_rows, "minValues": minimum, "maxValues": maximum, "nullCount": nulls}
    return orjson.dumps(record).decode()


def _collect(
    name: str, column: pa.ChunkedArray, minimum: dict[str, Any], maximum: dict[str, Any], nulls: dict[str, Any]
) -> None:
    if pa.types.is_struct(column.type):
        children: tuple[dict[str, Any], dict[str, Any], dict[str, Any]] = ({}, {}, {})
        for field in column.type:
            _collect(field.name, pc.struct_field(column, field.name), *children)
        for target, child in zip((minimum, maximum, nulls), children, strict=True):
            if child:
                target[name] = child
        return
    nulls[name] = column.null_count
    if column.null_count == len(column):
        return
    bounds = _bounds(column)
    if bounds is not None:
        minimum[name], maximum[name] = bounds


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any] | None:
    kind = column.type
    if pa.types.is_string(kind):
        found = pc.min_max(column)
        low, high = found["min"].as_py(), _string_maximum(found["max"].as_py())
        return None if high is None else (low[:STRING_PREFIX], high)
    if not any(matches(kind) for matches in _EXACT):
        return None
    if pa.types.is_floating(kind) and not pc.all(pc.is_finite(column)).as_py():
        return None  # NaN is not ordered, and JSON has no word for either
    found = pc.min_max(column)
    return _rendered(found["min"].as_py(), upper=False), _rendered(found["max"].as_py(), upper=True)


def _string_maximum(value: str) -> str | None:
    """A text of bounded length that is not below `value`, or None where none can be made."""
    if len(value) <= STRING_PREFIX:
        return value
    prefix = value[:STRING_PREFIX]
    return None if value[STRING_PREFIX] == _LARGEST_CHARACTER else prefix + _LARGEST_CHARACTER


def _rendered(value: Any, *, upper: bool) -> Any:
    if isinstance(value, dt.datetime):
        # Statistics hold milliseconds: a maximum is rounded up so that it still bounds the microseconds.
        if upper and value.microsecond % 1000:
            value += dt.timedelta(milliseconds=1)
        return value.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03d}Z"
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        # All its digits: a double next to it may lie on the wrong side.
        return orjson.Fragment(f"{value:f}")
    return value


def partition_text(value: Any) -> str | None:
    """A partition value as the Delta log writes it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, dt.date) else str(value)


def split_by_partition(data: pa.Table, partition_by: Sequence[str]) -> list[tuple[dict[str, str | None], pa.Table]]:
    """The rows of each partition value, in one table each."""
    if not partition_by:
        return [({}, data)]
    groups = data.select(list(partition_by)).group_by(list(partition_by), use_threads=False).aggregate([])
    if groups.num_rows == 1:
        values = groups.to_pylist()[0]
        return [({name: partition_text(values[name]) for name in partition_by}, data)]
    parts = []
    for values in groups.to_pylist():
        mask = None
        for name in partition_by:
            column, value = data.column(name), values[name]
            same = pc.is_null(column) if value is None else pc.equal(column, pa.scalar(value, column.type))
            mask = same if mask is None else pc.and_kleene(mask, same)
        parts.append(({n: partition_text(values[n]) for n in partition_by}, data.filter(mask)))
    return parts
