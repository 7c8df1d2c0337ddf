"""Converts requests, intervals, periods and notifications between Arrow tables and rows in this process."""

from __future__ import annotations

import datetime as dt
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal as DecimalValue
from typing import Any

import pyarrow as pa

from deltaworks.mutations.bounds import mutable_spec
from deltaworks.mutations.local_periods import ChangedPeriod, Period
from deltaworks.mutations.local_resolve import Interval, RequestRow
from deltaworks.mutations.small_merge import PERIOD_COLUMNS, SET_PREFIX
from deltaworks.specs.mutation import (
    DELETED_COLUMN,
    INTERVALS_COLUMNS,
    KEYS_PER_NOTIFICATION,
    NOTIFICATION_COLUMNS,
    ORG_COLUMN,
    REQUEST_COLUMNS,
)
from deltaworks.specs.table import TableSpec
from deltaworks.specs.types import Decimal, Primitive, parse_type
from deltaworks.tables.arrow_types import arrow_schema, arrow_type
from deltaworks.tables.rewrite import SparkRequiredError

_TIMESTAMP = pa.timestamp("us", tz="UTC")
BATCH_KIND = "mutation"


def requests_from_arrow(rows: pa.Table) -> list[RequestRow]:
    """Returns rows of a request table as requests; times in microseconds since 1970."""
    columns = [_values(rows, name) for name in (*REQUEST_COLUMNS, "event_time")]
    names = (*REQUEST_COLUMNS, "time")
    return [
        RequestRow(**{**(row := dict(zip(names, values, strict=True))), "fields": _map(row["fields"])})
        for values in zip(*columns, strict=True)
    ]


def intervals_from_arrow(rows: pa.Table) -> list[Interval]:
    """Returns rows of the table of intervals."""
    columns = [_values(rows, name) for name in INTERVALS_COLUMNS]
    return [
        Interval(**{**(row := dict(zip(INTERVALS_COLUMNS, values, strict=True))), "fields": _map(row["fields"]) or {}})
        for values in zip(*columns, strict=True)
    ]


def intervals_to_arrow(intervals: Sequence[Interval]) -> pa.Table:
    """Returns intervals as rows of their table."""
    schema = arrow_schema(INTERVALS_COLUMNS)
    columns = {
        field.name: _array(
            [
                list(value.items()) if field.name == "fields" else value
                for value in (getattr(interval, field.name) for interval in intervals)
            ],
            field.type,
        )
        for field in schema
    }
    return pa.table(columns, schema=schema)


def _values(rows: pa.Table, name: str) -> list[Any]:
    """Returns the values of a column; timestamps as microseconds since 1970."""
    column = rows.column(name)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.array(values, kind)


def _map(entries: Iterable[tuple[str, Any]] | None) -> dict[str, Any] | None:
    return None if entries is None else dict(entries)


def merge_source(table: TableSpec, periods: Sequence[Period]) -> pa.Table:
    """Returns periods as the source of a `SmallMerge`.

    Raises:
        SparkRequiredError: a value is not in its type's plain form, so that Spark decides whether it is valid.
    """
    kinds = {ORG_COLUMN: pa.string(), "id": pa.string(), "final_id": pa.string(), "deleted": pa.bool_()}
    kinds |= dict.fromkeys(("valid_from", "valid_to"), _TIMESTAMP)
    columns = {name: _array([getattr(one, name) for one in periods], kinds[name]) for name in PERIOD_COLUMNS}
    types = table.column_types()
    for name in mutable_spec(table).fields:
        values = [_parse(one.fields.get(name), types[name]) for one in periods]
        columns[f"{SET_PREFIX}{name}"] = pa.array(values, arrow_type(types[name]))
    return pa.table(columns)


_INTEGER, _FRACTION = re.compile(r"-?\d{1,18}"), re.compile(r"-?\d{1,15}(\.\d{1,15})?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?Z?")


def _parse(text: str | None, declared: str) -> Any:
    """Parses a set value in the plain form of its type, which Spark's `try_cast` parses to the same value."""
    if text is None or declared == "string":
        return text
    kind = parse_type(declared)
    try:
        value = _parse_plain(text, kind.name) if isinstance(kind, Primitive) else _parse_decimal(text, kind)
    except ValueError:
        value = None
    if value is None:
        raise SparkRequiredError(f"Spark decides whether {text[:40]!r} is a valid {declared}")
    return value


def _parse_plain(text: str, kind: str) -> Any:
    if kind in ("int", "long") and _INTEGER.fullmatch(text):
        number = int(text)
        return number if kind == "long" or -(2**31) <= number < 2**31 else None
    if kind == "double" and _FRACTION.fullmatch(text):
        return float(text)
    if kind == "boolean":
        return {"true": True, "false": False}.get(text)
    if kind == "date" and _DATE.fullmatch(text):
        return dt.date.fromisoformat(text)
    if kind == "timestamp" and _TIME.fullmatch(text):
        return dt.datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=dt.UTC)
    return None


def _parse_decimal(text: str, kind: Any) -> DecimalValue | None:
    if not isinstance(kind, Decimal) or not _FRACTION.fullmatch(text):
        return None
    integral, _, fraction = text.removeprefix("-").partition(".")
    fits = len(fraction) <= kind.scale and len(integral.lstrip("0")) <= kind.precision - kind.scale
    return DecimalValue(text) if fits else None


def notification_rows(
    changed: pa.Table,
    periods: Iterable[ChangedPeriod],
    *,
    data_table: TableSpec,
    notification_table: TableSpec,
    key: str,
    batch: int,
    at: dt.datetime,
    data_version: int,
) -> pa.Table:
    """Returns the rows of `notification_table` for rows that a batch changed, as `notifications.notifications` does."""
    columns = [column.name for column in notification_table.columns]
    keys_by_group: dict[tuple[Any, ...], list[str | None]] = defaultdict(list)
    for group, name in zip(
        _groups(changed, periods, data_table, columns), changed.column(key).to_pylist(), strict=True
    ):
        keys_by_group[group].append(name)
    types = notification_table.column_types()
    rows = [
        dict(zip((*columns, "change"), group, strict=True))
        | {
            "ingested_at": at,
            "ingested_date": at.date(),
            "keys": part,
            "batch": batch,
            "batch_kind": BATCH_KIND,
            "data_version": data_version,
        }
        for group, keys in sorted(keys_by_group.items(), key=repr)
        for part in _parts(keys)
    ]
    names = dict.fromkeys((*columns, *NOTIFICATION_COLUMNS))
    return pa.Table.from_pylist(rows, schema=arrow_schema({name: types[name] for name in names}))


def _parts(keys: Sequence[str | None]) -> Iterator[list[str]]:
    ordered = sorted(keys, key=lambda name: (name is not None, name or ""))
    for first in range(0, len(ordered), KEYS_PER_NOTIFICATION):
        yield [name for name in ordered[first : first + KEYS_PER_NOTIFICATION] if name is not None]


def _groups(
    changed: pa.Table, periods: Iterable[ChangedPeriod], data_table: TableSpec, columns: Sequence[str]
) -> Iterator[tuple[Any, ...]]:
    """Yields for each row the values of the copied columns, and the kind of change."""
    mutable = mutable_spec(data_table)
    by_id = _periods_by_id(periods)
    names = (ORG_COLUMN, mutable.origin, mutable.id, "event_time", DELETED_COLUMN)
    copied = zip(*(changed.column(name).to_pylist() for name in columns), strict=True)
    for values, (org, origin, present, time, deleted) in zip(
        copied, zip(*(_values(changed, name) for name in names), strict=True), strict=True
    ):
        before = _before(by_id, org, origin, time)
        previous_id, was_deleted = (origin, False) if before is None else before
        if bool(deleted) != was_deleted:
            change = "delete" if deleted else "insert"
        else:
            change = "rename" if present != previous_id else "update"
        yield (*values, change)


_PeriodsById = Mapping[tuple[str, str], tuple[list[int], list[ChangedPeriod]]]


def _periods_by_id(periods: Iterable[ChangedPeriod]) -> _PeriodsById:
    """Returns the periods of each id by their start, with an unbounded start as the smallest number."""
    by_id: dict[tuple[str, str], list[ChangedPeriod]] = defaultdict(list)
    for period in periods:
        by_id[period.org_id, period.id].append(period)
    return {
        name: ([_start(one) for one in ordered], ordered)
        for name, several in by_id.items()
        for ordered in [sorted(several, key=_start)]
    }


def _start(period: ChangedPeriod) -> int:
    return -(2**63) if period.valid_from is None else period.valid_from


def _before(by_id: _PeriodsById, org: str, origin: str, time: int) -> tuple[str, bool] | None:
    """Returns id and deletion of a row before the batch; None if it was as it arrived."""
    starts, periods = by_id.get((org, origin), ([], []))
    at = bisect_right(starts, time) - 1
    if at < 0:
        return None
    period = periods[at]
    if (period.valid_to is not None and time >= period.valid_to) or period.before is None:
        return None
    return period.before[0], period.before[1]
