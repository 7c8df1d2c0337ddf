"""Which parts of a gold table have to be rebuilt, and which parts of its inputs that takes. Pure arithmetic.

Three facts widen a touched date. A new or removed copy of an event can move the surviving copy by as many dates as
copies may lie apart. A gold table that looks across days changes on other dates than its input. And to rebuild a
date, everything that date is made of is read again. A table with `affects: same` knows none of this: a value of the
column that it and its inputs are partitioned by is made of the rows of that value.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from deltaworks.errors import ConfigError
from deltaworks.specs.gold import AffectsSpec, DedupeSpec, GoldTableSpec
from deltaworks.tables.changes import Changes

#: The column that bronze tables are partitioned by, a date.
DATE_COLUMN = "event_date"
#: More values than these are not named one by one in a query.
MOST_KEYS = 5_000
#: A set of dates, or None for all there are.
Dates = frozenset[dt.date] | None


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of some values of a column; all rows where `values` is None."""

    column: str
    values: Dates | frozenset[str]

    def covers(self, other: Part) -> bool:
        """Whether all rows of `other` are among its own, by the same column."""
        if self.column != other.column or self.values is None:
            return self.column == other.column
        return other.values is not None and {*other.values} <= {*self.values}

    def union(self, other: Part) -> Part:
        """The rows of either, of the same column."""
        if self.values is None or other.values is None:
            return Part(self.column, None)
        return Part(self.column, frozenset({*self.values, *other.values}))


@dataclass(frozen=True, slots=True)
class GoldPlan:
    """What a rebuild of one gold table does.

    Dates are None for all; empty `output_dates` mean nothing to do. `keys` are the values that are rebuilt of a table
    with `affects: same`, whose dates are None.
    """

    table: GoldTableSpec
    output_dates: Dates
    input_dates: Dates
    reason: str
    keys: frozenset[str] | None = None

    @property
    def output(self) -> Part:
        """What is written."""
        return Part(self.table.partition_by, self.output_dates if self.keys is None else self.keys)

    @property
    def input(self) -> Part:
        """What is read of every input."""
        if self.table.affects == "same":
            return Part(self.table.partition_by, self.keys)
        return Part(DATE_COLUMN, self.input_dates)

    @property
    def full(self) -> bool:
        """Whether the whole table is rewritten."""
        return self.output.values is None

    @property
    def has_work(self) -> bool:
        """Whether anything is to be written."""
        return self.full or bool(self.output.values)


def full_plan(table: GoldTableSpec, reason: str) -> GoldPlan:
    """Rebuild all of the table."""
    return GoldPlan(table, output_dates=None, input_dates=None, reason=reason)


def dated_plan(table: GoldTableSpec, dates: frozenset[dt.date]) -> GoldPlan:
    """Rebuild these dates, changed or not. Nothing is to be done where a table is not made of dates."""
    if not isinstance(table.affects, AffectsSpec):
        return GoldPlan(table, frozenset(), frozenset(), "it is not built by date")
    return GoldPlan(
        table,
        output_dates=dates,
        input_dates=frozenset(_shifted(dates, [-offset for offset in table.affects.days])),
        reason=f"{len(dates)} date(s) were asked for",
    )


def plan_rebuild(
    table: GoldTableSpec,
    changes: Mapping[str, Changes],
    dedupe: DedupeSpec | None,
    date_columns: Mapping[str, str] | None = None,
) -> GoldPlan:
    """Rebuild what the changes of the table's inputs touch.

    Args:
        changes: what changed in each input since the last build, by the input's name.
        date_columns: the column with the dates of an input, where it is another than a bronze table's.
    """
    if not any(changes.values()):
        return GoldPlan(table, frozenset(), frozenset(), "its inputs have not changed")
    if table.affects == "same":
        return _same_plan(table, changes)
    if not isinstance(table.affects, AffectsSpec):
        return full_plan(table, "its inputs changed, and any change affects all of it")
    touched: set[dt.date] = set()
    for name, change in changes.items():
        column = (date_columns or {}).get(name, DATE_COLUMN)
        dates = _dates(change, column)
        if dates is None:
            return full_plan(table, f"{name}: {change.reason or f'not distinguished by dates of {column}'}")
        touched |= dates
    offsets = table.affects.days
    affected = widened(touched, dedupe.across_days if dedupe else 0)
    output = frozenset(_shifted(affected, offsets))
    return GoldPlan(
        table,
        output_dates=output,
        input_dates=frozenset(_shifted(output, [-offset for offset in offsets])),
        reason=f"{len(touched)} date(s) of its inputs changed",
    )


def _same_plan(table: GoldTableSpec, changes: Mapping[str, Changes]) -> GoldPlan:
    touched: set[str] = set()
    for name, change in changes.items():
        values = change.values(table.partition_by)
        if values is None:
            return full_plan(table, f"{name}: {change.reason or f'not distinguished by {table.partition_by}'}")
        # Rows without a value are in no part of the answer.
        touched |= {value for value in values if value is not None}
    reason = f"{len(touched)} {table.partition_by} of its inputs changed"
    if len(touched) > MOST_KEYS:
        return full_plan(table, f"{reason}, more than {MOST_KEYS}")
    return GoldPlan(table, output_dates=None, input_dates=None, reason=reason, keys=frozenset(touched))


def dates_of(text: str) -> frozenset[dt.date] | None:
    """The dates a text names: `2026-01-01`, `2026-01-01,2026-01-03` or `2026-01-01..2026-01-07` (both included); None
    for an empty text.

    Raises:
        ConfigError: GOLD_DATES_INVALID.
    """
    dates: set[dt.date] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        start, separator, end = part.partition("..")
        try:
            first = dt.date.fromisoformat(start)
            last = dt.date.fromisoformat(end) if separator else first
        except ValueError as error:
            raise ConfigError(
                "GOLD_DATES_INVALID", f"{part!r} names no date.", hint="Write 2026-01-01 or 2026-01-01..2026-01-07."
            ) from error
        dates |= {first + dt.timedelta(days=day) for day in range((last - first).days + 1)}
    return frozenset(dates) or None


def widened(dates: Iterable[dt.date], days: int) -> frozenset[dt.date]:
    """The dates and those up to `days` before and after each."""
    return frozenset(_shifted(dates, range(-days, days + 1)))


def _shifted(dates: Iterable[dt.date], offsets: Iterable[int]) -> set[dt.date]:
    steps = [dt.timedelta(days=offset) for offset in offsets]
    return {date + step for date in dates for step in steps}


def _dates(change: Changes, column: str) -> set[dt.date] | None:
    """The dates that changed, None where that is not known."""
    values = change.values(column)
    if values is None or None in values:
        return None
    try:
        return {dt.date.fromisoformat(value) for value in values if value is not None}
    except ValueError:
        return None
