"""Statistics of a data file, as Delta's protocol defines them, for readers that skip files.

Row count; per leaf column the null count, and the least and greatest value where the type has an order every reader
agrees on: numbers, decimals, dates, timestamps, texts. Arrays and maps have a null count only. A bound may be looser
than the values it stands for, never tighter: long texts are cut to STRING_PREFIX characters, timestamps to
milliseconds, and a maximum is raised where cutting would lower it. A bound that cannot be had is left out, and such a
file is read.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

STRING_PREFIX = 32
DEFAULT_INDEXED_COUNT = 32
_MAX_CHARACTER = "\U0010ffff"
_HAS_EXACT_BOUNDS = (
    pa.types.is_integer,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_timestamp,
)


@dataclass(frozen=True, slots=True)
class IndexedColumns:
    """Which leaf columns have statistics: the first so many, or those that are named (with all below them).

    Values of columns a table excludes must not be in its log: that may be why they are excluded.
    """

    max_columns: int = DEFAULT_INDEXED_COUNT
    column_names: tuple[str, ...] | None = None

    @classmethod
    def of(cls, configuration: Mapping[str, str | None]) -> IndexedColumns:
        """What a table's properties say; -1 means all."""
        named = configuration.get("delta.dataSkippingStatsColumns")
        if named is not None:
            names = (name.strip().replace("`", "") for name in named.split(","))
            return cls(named=tuple(name for name in names if name))
        first = configuration.get("delta.dataSkippingNumIndexedCols")
        return cls() if first is None else cls(first=int(first) if int(first) >= 0 else 1 << 30)

    def includes(self, path: str, ordinal: int) -> bool:
        """Whether the leaf at `path`, the so manyth of its table, has statistics."""
        if self.column_names is None:
            return ordinal < self.max_columns
        return any(path == name or path.startswith(f"{name}.") for name in self.column_names)


DEFAULT_COLUMNS = IndexedColumns()


def statistics(data: pa.Table, indexed: IndexedColumns = DEFAULT_COLUMNS) -> str:
    """The add action's `stats`. `data` is without the partition columns, as the file is."""
    minimum: dict[str, Any] = {}
    maximum: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for ordinal, (path, column) in enumerate(_leaves(data)):
        if not indexed.includes(".".join(path), ordinal):
            continue
        _set_nested(nulls, path, column.null_count)
        low, high = (None, None) if column.null_count == len(column) else _bounds(column)
        if low is not None:
            _set_nested(minimum, path, low)
        if high is not None:
            _set_nested(maximum, path, high)
    record = {"numRecords": data.num_rows, "minValues": minimum, "maxValues": maximum, "nullCount": nulls}
    return orjson.dumps(record).decode()


def _leaves(data: pa.Table) -> Iterator[tuple[tuple[str, ...], pa.ChunkedArray]]:
    """Every column that is no struct, with its path, in the order Delta counts them."""
    for name in data.column_names:
        yield from _leaves_below((name,), data.column(name))


def _leaves_below(path: tuple[str, ...], column: pa.ChunkedArray) -> Iterator[tuple[tuple[str, ...], pa.ChunkedArray]]:
    if not pa.types.is_struct(column.type):
        yield path, column
        return
    for index, field in enumerate(column.type):
        yield from _leaves_below((*path, field.name), pc.struct_field(column, [index]))


def _set_nested(record: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        record = record.setdefault(name, {})
    record[path[-1]] = value


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any]:
    """The least and the greatest value as the log writes them, None for one that cannot be had."""
    kind = column.type
    if pa.types.is_floating(kind):
        return _float_bounds(column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        extremes = pc.min_max(column)
        return extremes["min"].as_py()[:STRING_PREFIX], _string_upper_bound(extremes["max"].as_py())
    if not any(matches(kind) for matches in _HAS_EXACT_BOUNDS):
        return None, None
    extremes = pc.min_max(column)
    return _json_bound(extremes["min"].as_py(), upper=False), _json_bound(extremes["max"].as_py(), upper=True)


def _float_bounds(column: pa.ChunkedArray) -> tuple[float | None, float | None]:
    """JSON has no word for the infinities. With a NaN there is no bound: readers do not agree on where it stands."""
    if pc.any(pc.is_nan(column)).as_py():
        return None, None
    extremes = pc.min_max(column)
    low, high = extremes["min"].as_py(), extremes["max"].as_py()
    return low if math.isfinite(low) else None, high if math.isfinite(high) else None


def _string_upper_bound(value: str) -> str | None:
    """A text of bounded length that is not below `value`, or None where none can be made."""
    if len(value) <= STRING_PREFIX:
        return value
    prefix = value[:STRING_PREFIX]
    return None if value[STRING_PREFIX] == _MAX_CHARACTER else prefix + _MAX_CHARACTER


def _json_bound(value: Any, *, upper: bool) -> Any:
    if isinstance(value, dt.datetime):
        return _timestamp_bound(value, upper=upper)
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        # All its digits: a double next to it may lie on the wrong side.
        return orjson.Fragment(f"{value:f}")
    return value


def _timestamp_bound(value: dt.datetime, *, upper: bool) -> str | None:
    """Statistics hold milliseconds: a maximum is rounded up so that it still bounds the microseconds."""
    value = value.astimezone(dt.UTC).replace(tzinfo=None)
    if upper and value.microsecond % 1000:
        if value > dt.datetime.max - dt.timedelta(milliseconds=1):
            return None
        value += dt.timedelta(milliseconds=1)
    return value.isoformat(timespec="milliseconds") + "Z"
