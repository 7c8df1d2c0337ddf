"""Computes the statistics of data files as defined by the Delta protocol, for data skipping.

Statistics are the row count and, per leaf column, null count, minimum and maximum. Only types with a well-defined order
have bounds: numbers, decimals, dates, timestamps and strings. Arrays and maps have a null count only, and variants
have none, as in files that delta-rs writes. A bound may be
looser than the values, but never tighter: strings are cut to STRING_PREFIX characters, timestamps to milliseconds, and
a maximum is rounded up. Readers do not skip a file without a bound.
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

from deltaworks.tables.arrow_types import VARIANT_TYPE

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
    """Leaf columns that get statistics: the first `max_columns`, or the named columns with all their nested fields.

    Values of other columns must not appear in the log, because they may be excluded for privacy.
    """

    max_columns: int = DEFAULT_INDEXED_COUNT
    column_names: tuple[str, ...] | None = None

    @classmethod
    def of(cls, configuration: Mapping[str, str | None]) -> IndexedColumns:
        """Reads the setting from table properties; -1 means all columns."""
        column_list = configuration.get("delta.dataSkippingStatsColumns")
        if column_list is not None:
            names = (name.strip().replace("`", "") for name in column_list.split(","))
            return cls(column_names=tuple(name for name in names if name))
        first = configuration.get("delta.dataSkippingNumIndexedCols")
        return cls() if first is None else cls(max_columns=int(first) if int(first) >= 0 else 1 << 30)

    def includes(self, path: str, ordinal: int) -> bool:
        """Returns whether the leaf column at `path`, which has this ordinal in the table, gets statistics."""
        if self.column_names is None:
            return ordinal < self.max_columns
        return any(path == name or path.startswith(f"{name}.") for name in self.column_names)


DEFAULT_COLUMNS = IndexedColumns()


def statistics(data: pa.Table, indexed: IndexedColumns = DEFAULT_COLUMNS) -> str:
    """Returns the `stats` of an add action for `data`, which has no partition columns."""
    minimum: dict[str, Any] = {}
    maximum: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for ordinal, (path, column) in enumerate(_leaves(data)):
        if column.type == VARIANT_TYPE or not indexed.includes(".".join(path), ordinal):
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
    """Yields every column that is not a struct, also inside structs, with its path, in Delta's order."""
    for name in data.column_names:
        yield from _leaves_below((name,), data.column(name))


def _leaves_below(path: tuple[str, ...], column: pa.ChunkedArray) -> Iterator[tuple[tuple[str, ...], pa.ChunkedArray]]:
    if not pa.types.is_struct(column.type) or column.type == VARIANT_TYPE:
        yield path, column
        return
    for index, field in enumerate(column.type):
        yield from _leaves_below((*path, field.name), pc.struct_field(column, [index]))


def _set_nested(record: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        record = record.setdefault(name, {})
    record[path[-1]] = value


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any]:
    """Returns minimum and maximum in the form of the log; None for a bound that cannot be given."""
    data_type = column.type
    if pa.types.is_floating(data_type):
        return _float_bounds(column)
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        extremes = pc.min_max(column)
        return extremes["min"].as_py()[:STRING_PREFIX], _string_upper_bound(extremes["max"].as_py())
    if not any(matches(data_type) for matches in _HAS_EXACT_BOUNDS):
        return None, None
    extremes = pc.min_max(column)
    return _json_bound(extremes["min"].as_py(), upper=False), _json_bound(extremes["max"].as_py(), upper=True)


def _float_bounds(column: pa.ChunkedArray) -> tuple[float | None, float | None]:
    """Returns the bounds of floats. An infinite bound is None, because JSON cannot represent it. With NaN both bounds
    are None, because readers order NaN differently.
    """
    if pc.any(pc.is_nan(column)).as_py():
        return None, None
    extremes = pc.min_max(column)
    low, high = extremes["min"].as_py(), extremes["max"].as_py()
    return low if math.isfinite(low) else None, high if math.isfinite(high) else None


def _string_upper_bound(value: str) -> str | None:
    """Returns a string of bounded length that is at least `value`; None if there is none."""
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
        # Written with all digits, because the closest double may be smaller than a maximum or larger than a minimum.
        return orjson.Fragment(f"{value:f}")
    return value


def _timestamp_bound(value: dt.datetime, *, upper: bool) -> str | None:
    """Rounds a timestamp to milliseconds: a minimum down, a maximum up."""
    value = value.astimezone(dt.UTC).replace(tzinfo=None)
    if upper and value.microsecond % 1000:
        if value > dt.datetime.max - dt.timedelta(milliseconds=1):
            return None
        value += dt.timedelta(milliseconds=1)
    return value.isoformat(timespec="milliseconds") + "Z"
