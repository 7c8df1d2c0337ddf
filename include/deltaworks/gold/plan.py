"""Plans a rebuild: the affected parts of a gold table, and the parts of its inputs to read.

Changed dates are widened for two reasons. A new or removed duplicate can change which row is kept within the dedupe
window, except one that arrived after all rows of a date. `affects.days` maps input dates to other output dates. All
input rows of an affected date are read again. With `affects: same` only the changed partition values are rebuilt.

Dates of a table with `frozen_after` that ended so long ago are rebuilt only if rows were removed from their inputs, by
an erasure, a mutation or a restore, or on request. Rows that were only added to them arrived late and are counted.

An input with `affects: onwards` affects all dates from its first changed date, because its values are valid from a date
until the next value. Such an input is read completely. It is an interval table, which states which value was valid from
when to when. Every build rewrites all of its files, so changes are found by comparing the rows of two versions.

In a table with a grain the same rules apply to hours. A changed date without known hours counts as all of its hours.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake.exceptions import DeltaError

from deltaworks.errors import ConfigError
from deltaworks.gold.parts import (
    DATE_COLUMN,
    Dates,
    Part,
    affected_hours,
    hours_of_changes,
    part_from_hours,
    required_part,
    shift_dates,
    shift_hours,
    widen_dates,
)
from deltaworks.gold.row_differences import count_differing_rows
from deltaworks.specs.base import nearest_names_hint
from deltaworks.specs.gold import AffectsSpec, DedupeSpec, GoldTableSpec, IntervalsSpec, build_order
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.changes import Changes, Partition, changed_partitions
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Above this number of changed values the table is rebuilt in full.
MAX_KEYS = 5_000


@dataclass(frozen=True, slots=True)
class GoldPlan:
    """The plan for rebuilding one gold table.

    - `output_dates`, `input_dates`: dates to rebuild and to read; None for all. Empty `output_dates` without `since`
      mean that there is no work.
    - `keys`: with `affects: same`, the values to rebuild; dates are None then.
    - `since`: all dates from this one are rebuilt.
    - `output_hours`: in a table with a grain, single hours of other dates.
    - `late_rows`: of frozen dates, how many rows arrived late; they rebuild nothing.
    """

    table: GoldTableSpec
    output_dates: Dates
    input_dates: Dates
    reason: str
    keys: frozenset[str] | None = None
    since: dt.date | None = None
    output_hours: frozenset[dt.datetime] = frozenset()
    late_rows: tuple[tuple[dt.date, int], ...] = ()

    @property
    def output(self) -> Part:
        """The part of the table that is written."""
        values = self.output_dates if self.keys is None else self.keys
        hours = None if self.table.grain is None else self.output_hours
        return Part(self.table.partition_by, values, self.since, hours)

    @property
    def input(self) -> Part:
        """The part to read of every input, if `affects` is the same for all."""
        if self.table.affects == "same":
            return Part(self.table.partition_by, self.keys)
        return Part(DATE_COLUMN, self.input_dates)

    def input_of(self, name: str) -> Part:
        """Returns the part of this input to read."""
        if self.table.grain is not None:
            affects = self.table.affects_for_input(name)
            everything = Part(DATE_COLUMN, None, None, frozenset())
            return required_part(self.output, affects) if isinstance(affects, AffectsSpec) else everything
        if isinstance(self.table.affects, str | AffectsSpec):
            return self.input
        affects = self.table.affects_for_input(name)
        if not isinstance(affects, AffectsSpec) or self.output_dates is None:
            return Part(DATE_COLUMN, None)
        back = [-offset for offset in affects.days]
        since = self.since and self.since + dt.timedelta(days=min(back))
        return Part(DATE_COLUMN, frozenset(shift_dates(self.output_dates, back)), since)

    @property
    def full(self) -> bool:
        """Whether all rows of the table are rewritten."""
        return self.output.values is None

    @property
    def has_work(self) -> bool:
        """Whether any rows have to be written."""
        return not self.output.is_empty


def select_gold_tables(spec: PipelineSpec, tables: Sequence[str] | None) -> list[GoldTableSpec]:
    """Returns the named gold tables, or all, in dependency order.

    Raises:
        ConfigError: GOLD_TABLE_UNKNOWN.
    """
    declared = {table.name: table for table in spec.gold.tables}
    unknown = sorted(set(tables or ()) - set(declared))
    if unknown:
        raise ConfigError(
            "GOLD_TABLE_UNKNOWN",
            f"Pipeline {spec.pipeline!r} has no gold table {', '.join(unknown)}.",
            hint=nearest_names_hint(unknown, declared, prefix="Its gold tables are"),
        )
    return [table for table in build_order(spec.gold.tables) if not tables or table.name in tables]


def full_plan(table: GoldTableSpec, reason: str) -> GoldPlan:
    """Plans a full rebuild."""
    return GoldPlan(table, output_dates=None, input_dates=None, reason=reason)


def dated_plan(table: GoldTableSpec, dates: frozenset[dt.date]) -> GoldPlan:
    """Plans a rebuild of these dates, changed or not. The plan is empty for a table that is not partitioned by date."""
    if not table.is_partitioned_by_date:
        return GoldPlan(table, frozenset(), frozenset(), "it is not built by date")
    return GoldPlan(
        table,
        output_dates=dates,
        input_dates=_input_dates(table, dates),
        reason=f"{len(dates)} date(s) were requested",
    )


def plan_rebuild(
    table: GoldTableSpec,
    changes: Mapping[str, Changes],
    dedupe: DedupeSpec | None,
    date_columns: Mapping[str, str] | None = None,
    last_seq: Mapping[str, Mapping[dt.date, int | None]] | None = None,
    *,
    frozen_before: dt.date | None = None,
) -> GoldPlan:
    """Plans a rebuild of everything affected by the changes of the inputs.

    Args:
        changes: changes since the last build, by input.
        date_columns: the date column of each input. Only inputs dated by a bronze table's column are widened by
            `dedupe`.
        last_seq: the greatest `_seq` of each date, for inputs with events; None if it is unknown.
        frozen_before: earlier dates are rebuilt only if rows were removed from their inputs.
    """
    if not any(changes.values()):
        return GoldPlan(table, frozenset(), frozenset(), "its inputs have not changed")
    if table.affects == "same":
        return _plan_values(table, changes)
    if table.affects == "all":
        return full_plan(table, "its inputs changed, and any change affects all rows")
    if table.grain is not None:
        plan = _plan_hours(table, changes, dedupe, date_columns or {})
    else:
        plan = _plan_dates(table, changes, dedupe, date_columns or {}, last_seq or {})
    if frozen_before is None or plan.full:
        return plan
    return _without_frozen_dates(plan, changes, dedupe, date_columns or {}, frozen_before)


def _without_frozen_dates(
    plan: GoldPlan,
    changes: Mapping[str, Changes],
    dedupe: DedupeSpec | None,
    date_columns: Mapping[str, str],
    frozen_before: dt.date,
) -> GoldPlan:
    """Returns the plan without the dates that are frozen and only have late rows, and with the number of these rows.

    A late row may change another date too, by moving a duplicate: it counts there as one row, unless rows arrived late
    on that date itself.
    """
    table = plan.table
    dates = {*(plan.output_dates or ()), *(hour.date() for hour in plan.output_hours)}
    late = {date: 0 for date in dates if date < frozen_before}
    for name, change in changes.items():
        affects, column = table.affects_for_input(name), date_columns.get(name, DATE_COLUMN)
        days = affected_days(affects) if isinstance(affects, AffectsSpec) else ()
        removed = _dates_of(change.removed, column)
        for date in shift_dates(widen_dates(removed, _window_days(table, dedupe, column)), days):
            late.pop(date, None)
        for partition, rows in change.added_rows.items():
            for date in shift_dates(_dates_of([partition], column), days):
                if date in late:
                    late[date] += rows
    if not late:
        return plan
    output_dates = frozenset(date for date in plan.output_dates or () if date not in late)
    reason = plan.reason
    return replace(
        plan,
        output_dates=output_dates,
        input_dates=_input_dates(table, output_dates) if table.grain is None else plan.input_dates,
        output_hours=frozenset(hour for hour in plan.output_hours if hour.date() not in late),
        late_rows=tuple(sorted((date, max(1, rows)) for date, rows in late.items())),
        reason=f"{reason}, {len(late)} of the affected date(s) are frozen",
    )


def affected_days(affects: AffectsSpec) -> Sequence[int]:
    """Returns the offsets of the dates that a changed date, or an hour on that date, affects."""
    if not affects.hours:
        return affects.days
    return sorted({(hour + offset) // 24 for offset in affects.hours for hour in (0, 23)})


def _window_days(table: GoldTableSpec, dedupe: DedupeSpec | None, column: str) -> int:
    """Returns the dedupe window of an input in dates. Only events of bronze tables can be duplicates."""
    if dedupe is None or column != DATE_COLUMN:
        return 0
    return dedupe.within_days if table.grain is None else -(-(dedupe.within_hours or 0) // 24)


def _dates_of(partitions: Iterable[Partition], column: str) -> set[dt.date]:
    values = (dict(partition).get(column) for partition in partitions)
    return {dt.date.fromisoformat(value) for value in values if value is not None}


def with_dates(plan: GoldPlan, dates: frozenset[dt.date], reason: str) -> GoldPlan:
    """Returns a plan that rebuilds further dates."""
    output = (plan.output_dates or frozenset()) | dates
    return replace(
        plan,
        output_dates=output,
        input_dates=_input_dates(plan.table, output) if plan.table.grain is None else plan.input_dates,
        output_hours=frozenset(hour for hour in plan.output_hours if hour.date() not in dates),
        reason=f"{plan.reason}; {reason}",
    )


def _plan_dates(
    table: GoldTableSpec,
    changes: Mapping[str, Changes],
    dedupe: DedupeSpec | None,
    date_columns: Mapping[str, str],
    last_seq: Mapping[str, Mapping[dt.date, int | None]],
) -> GoldPlan:
    changed: set[dt.date] = set()
    output: set[dt.date] = set()
    since: dt.date | None = None
    window = dedupe.within_days if dedupe else 0
    for name, change in changes.items():
        affects, column = table.affects_for_input(name), date_columns.get(name, DATE_COLUMN)
        if affects == "all" and change:
            return full_plan(table, f"{name} changed, and any change affects all rows")
        dates = _changed_dates(change, column)
        if dates is None:
            return full_plan(table, f"{name}: {change.reason or _missing_date_reason(column)}")
        changed |= dates
        if isinstance(affects, AffectsSpec):
            in_window = _dates_with_moved_duplicates(dates, window, _first_seq(change, column), last_seq.get(name))
            output |= shift_dates(in_window, affects.days)
        elif dates:
            first = min(dates) - dt.timedelta(days=window if column == DATE_COLUMN else 0)
            since = first if since is None else min(since, first)
    rebuilt = frozenset(date for date in output if since is None or date < since)
    onwards = "" if since is None else f", and with them every date from {since} on"
    return GoldPlan(
        table,
        output_dates=rebuilt,
        input_dates=_input_dates(table, rebuilt),
        reason=f"{len(changed)} date(s) of its inputs changed{onwards}",
        since=since,
    )


def _dates_with_moved_duplicates(
    dates: set[dt.date],
    window: int,
    first_seq: Mapping[dt.date, int],
    last_seq: Mapping[dt.date, int | None] | None,
) -> frozenset[dt.date]:
    """Returns the changed dates, and dates within the window where another row may now be the first of its key.

    Rows that were only added cannot be the first on a date if they arrived after all of its rows.
    """
    dates_in_window = widen_dates(dates, window)
    if last_seq is None:
        return dates_in_window

    def is_moved_by(date: dt.date, changed: dt.date) -> bool:
        if date not in last_seq:
            return False  # the date has no rows
        first, last = first_seq.get(changed), last_seq[date]
        return first is None or last is None or first <= last

    return frozenset(
        date
        for date in dates_in_window
        if date in dates
        or any(abs((date - changed_date).days) <= window and is_moved_by(date, changed_date) for changed_date in dates)
    )


def _first_seq(change: Changes, column: str) -> dict[dt.date, int]:
    """Returns the least `_seq` added to each date. Omits dates of which a partition lacks it."""
    first: dict[dt.date, int] = {}
    unknown: set[str | None] = set()
    for partition in change.partitions:
        value = dict(partition).get(column)
        seq = change.first_seq.get(partition)
        if seq is None or value is None:
            unknown.add(value)
        elif value not in unknown:
            date = dt.date.fromisoformat(value)
            first[date] = min(seq, first.get(date, seq))
    return {date: seq for date, seq in first.items() if date.isoformat() not in unknown}


def _plan_hours(
    table: GoldTableSpec, changes: Mapping[str, Changes], dedupe: DedupeSpec | None, date_columns: Mapping[str, str]
) -> GoldPlan:
    changed: set[dt.datetime] = set()
    output: set[dt.datetime] = set()
    since: dt.date | None = None
    for name, change in changes.items():
        affects, column = table.affects_for_input(name), date_columns.get(name, DATE_COLUMN)
        if affects == "all" and change:
            return full_plan(table, f"{name} changed, and any change affects all rows")
        hours = hours_of_changes(change, column)
        if hours is None:
            return full_plan(table, f"{name}: {change.reason or _missing_date_reason(column)}")
        changed |= hours
        # Only events of bronze tables can be duplicates.
        window = (dedupe.within_hours or 0) if dedupe is not None and column == DATE_COLUMN else 0
        in_window = shift_hours(hours, range(-window, window + 1))
        if isinstance(affects, AffectsSpec):
            output |= affected_hours(in_window, affects)
        elif in_window:
            first = min(in_window).date()
            since = first if since is None else min(since, first)
    part = part_from_hours(table.partition_by, output, since)
    onwards = "" if since is None else f", and with them every date from {since} on"
    return GoldPlan(
        table,
        output_dates=frozenset(date for date in part.values or () if isinstance(date, dt.date)),
        input_dates=frozenset(),
        reason=f"{len(changed)} hour(s) of its inputs changed{onwards}",
        since=since,
        output_hours=part.hours or frozenset(),
    )


def _missing_date_reason(column: str) -> str:
    return f"not partitioned by dates of {column}" if column else "it has no dates"


def _input_dates(table: GoldTableSpec, output: frozenset[dt.date]) -> frozenset[dt.date]:
    days = table.affects.days if isinstance(table.affects, AffectsSpec) else ()
    return frozenset(shift_dates(output, [-offset for offset in days]))


def _plan_values(table: GoldTableSpec, changes: Mapping[str, Changes]) -> GoldPlan:
    changed: set[str] = set()
    for name, change in changes.items():
        values = change.partition_values(table.partition_by)
        if values is None:
            return full_plan(table, f"{name}: {change.reason or f'not partitioned by {table.partition_by}'}")
        # Rows without a value are not in the gold table.
        changed |= {value for value in values if value is not None}
    reason = f"{len(changed)} {table.partition_by} of its inputs changed"
    if len(changed) > MAX_KEYS:
        return full_plan(table, f"{reason}, more than {MAX_KEYS}")
    return GoldPlan(table, output_dates=None, input_dates=None, reason=reason, keys=frozenset(changed))


def parse_dates(text: str) -> frozenset[dt.date] | None:
    """Parses dates such as `2026-01-01`, `2026-01-01,2026-01-03` or `2026-01-01..2026-01-07` (inclusive); None for an
    empty text.

    Raises:
        ConfigError: GOLD_DATES_INVALID.
    """
    dates: set[dt.date] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        start, separator, end = (item.strip() for item in part.partition(".."))
        try:
            first = dt.date.fromisoformat(start)
            last = dt.date.fromisoformat(end) if separator else first
        except ValueError as error:
            raise ConfigError("GOLD_DATES_INVALID", f"{part!r} is not a date or a range of dates.") from error
        if last < first:
            raise ConfigError("GOLD_DATES_INVALID", f"{part!r} is empty, because its end is before its start.")
        dates |= {first + dt.timedelta(days=day) for day in range((last - first).days + 1)}
    return frozenset(dates) or None


def _changed_dates(change: Changes, column: str) -> set[dt.date] | None:
    """Returns the changed dates; None if they are not known."""
    values = change.partition_values(column)
    if values is None or None in values:
        return None
    try:
        return {dt.date.fromisoformat(value) for value in values if value is not None}
    except ValueError:
        return None


# Interval tables.

#: Number of keys listed per kind of problem.
_MAX_EXAMPLES = 3


def interval_failures(intervals: IntervalsSpec, answer: DataFrame) -> list[str]:
    """Returns the interval checks that a result fails, one sentence each.

    Scans the result once, ordered within each key.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    start, end = F.col(intervals.start), F.col(intervals.end)
    ordered = Window.partitionBy(*intervals.by).orderBy(start.asc_nulls_first(), end.asc_nulls_last())
    following, last = F.lead(start).over(ordered), F.lead(F.lit(False), 1, True).over(ordered)
    problem = (
        F.when(start.isNull(), f"without {intervals.start}")
        .when(end.isNotNull() & (end <= start), f"whose {intervals.end} is not after {intervals.start}")
        .when(~last & (end.isNull() | (end > following)), "that overlap the next")
        .when(~last & (end < following), "with a gap before the next")
    )
    texts = [F.col(name).cast("string") for name in intervals.by]
    invalid_rows = answer.select(*intervals.by, problem.alias("_mistake")).filter("_mistake IS NOT NULL")
    kinds = invalid_rows.groupBy("_mistake").agg(
        F.count(F.lit(1)).alias("_count"),
        F.slice(F.array_sort(F.collect_set(F.concat_ws(", ", *texts))), 1, _MAX_EXAMPLES).alias("_values"),
    )
    key_columns = ", ".join(intervals.by)
    return [
        f"{row['_count']} intervals {row['_mistake']}, of ({key_columns}) {'; '.join(row['_values'])}"
        for row in sorted(kinds.collect(), key=lambda row: str(row["_mistake"]))
    ]


def changes_by_row_diff(lake: Lake, key: str, *, column: str, before: int | None, after: int) -> Changes:
    """Compares the rows of two versions and returns the first date of `column` with a difference as a change.

    Rewritten but equal rows are no change. Reads all rows of both versions with DuckDB.

    Args:
        before: the version that was read last; None if it is unknown.
    """
    if before is None:
        return Changes(is_unbounded=True, reason="no earlier version is known")
    # Rows need not be read if the log shows that no data file changed.
    if before <= after and not changed_partitions(lake, key, after_version=before, up_to_version=after):
        return Changes()
    import duckdb

    try:
        first, undated, rows = _first_difference(lake, key, column, before, after)
    except (DeltaError, OSError, ValueError, duckdb.Error) as error:
        text = " ".join(str(error).split())[:200]
        return Changes(is_unbounded=True, reason=f"its versions {before} and {after} cannot be compared: {text}")
    if undated:
        return Changes(is_unbounded=True, reason=f"{undated} differing rows have no {column}")
    return Changes(frozenset([((column, str(first)),)])) if rows else Changes()


def _first_difference(lake: Lake, key: str, column: str, before: int, after: int) -> tuple[dt.date | None, int, int]:
    """Returns the first date with a different row, the number of different rows without a date, and their total number.

    Raises:
        ValueError: the table does not exist or its columns changed.
        DeltaError, OSError, duckdb.Error: a version can no longer be read.
    """
    versions = []
    for version in (before, after):
        table = lake.open(key)
        if table is None:
            raise ValueError("the table no longer exists")
        table.load_as_version(version)
        versions.append(table)
    counted = count_differing_rows(lake, *versions, by=f'CAST("{column}" AS DATE)', is_exact=True)
    if counted is None:
        raise ValueError("its columns changed")
    dates = [dt.date.fromisoformat(value) for value in counted if value is not None]
    return min(dates, default=None), counted.get(None, 0), sum(counted.values())


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a gold table for the dates of its plan; None if there are none. `duplicates` were left out."""

    rows: pa.Table | None
    duplicates: int


def as_declared(rows: pa.Table | None, schema: pa.Schema) -> pa.Table:
    """Returns an answer with the columns of its table.

    Raises:
        ArrowInvalid: columns or values do not fit.
    """
    if rows is None:
        return schema.empty_table()
    if rows.column_names != schema.names:
        raise pa.ArrowInvalid(f"columns {rows.column_names} instead of {schema.names}")
    columns: Mapping[str, Any] = {
        field.name: _in_utc(rows.column(field.name), field.type).cast(field.type) for field in schema
    }
    return pa.table(columns, schema=schema)


def _in_utc(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_timestamp(target) and target.tz and pa.types.is_timestamp(column.type) and column.type.tz is None:
        return column.cast(pa.timestamp("us", "UTC"))
    return column
