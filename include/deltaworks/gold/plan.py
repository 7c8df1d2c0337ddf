"""Which parts of a gold table have to be rebuilt, and which parts of its inputs that takes. Pure arithmetic.

Three facts widen a touched date. A new or removed copy of an event can move the surviving copy by as many dates as
copies may lie apart. A gold table that looks across days changes on other dates than its input. And to rebuild a
date, everything that date is made of is read again. A table with `affects: same` knows none of this: a value of the
column that it and its inputs are partitioned by is made of the rows of that value.

Where `affects` speaks of inputs one by one, a change of one that affects `onwards` touches every date from its own on:
a row that holds from a date on, until another one does, is of no answer before it. Such an input is read whole.
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
    """The rows of some values of a column, and of every date from `since` on; all rows where `values` is None."""

    column: str
    values: Dates | frozenset[str]
    since: dt.date | None = None

    def has(self, value: dt.date | str) -> bool:
        """Whether rows of this value are in it."""
        if self.values is None or value in self.values:
            return True
        return self.since is not None and isinstance(value, dt.date) and value >= self.since

    def covers(self, other: Part) -> bool:
        """Whether all rows of `other` are among its own, by the same column."""
        if self.column != other.column or self.values is None:
            return self.column == other.column
        if other.values is None or not all(map(self.has, other.values)):
            return False
        return other.since is None or (self.since is not None and self.since <= other.since)

    def union(self, other: Part) -> Part:
        """The rows of either, of the same column."""
        if self.values is None or other.values is None:
            return Part(self.column, None)
        since = min((date for date in (self.since, other.since) if date is not None), default=None)
        return Part(self.column, frozenset({*self.values, *other.values}), since)

    def widened(self, days: int) -> Part:
        """Its dates and those up to `days` before and after each."""
        if self.values is None:
            return self
        dates = (value for value in self.values if isinstance(value, dt.date))
        return Part(self.column, widened(dates, days), self.since and self.since - dt.timedelta(days=days))

    @property
    def named(self) -> tuple[str, ...] | None:
        """Its values as texts, the dates from `since` on as `2026-01-01..`; None for all."""
        if self.values is None:
            return None
        return (*(str(value) for value in sorted(self.values)), *([] if self.since is None else [f"{self.since}.."]))


@dataclass(frozen=True, slots=True)
class GoldPlan:
    """What a rebuild of one gold table does.

    Dates are None for all; empty `output_dates` without `since` mean nothing to do. `keys` are the values that are
    rebuilt of a table with `affects: same`, whose dates are None. From `since` on every date is rebuilt.
    """

    table: GoldTableSpec
    output_dates: Dates
    input_dates: Dates
    reason: str
    keys: frozenset[str] | None = None
    since: dt.date | None = None

    @property
    def output(self) -> Part:
        """What is written."""
        return Part(self.table.partition_by, self.output_dates if self.keys is None else self.keys, self.since)

    @property
    def input(self) -> Part:
        """What is read of every input, where `affects` does not speak of them one by one."""
        if self.table.affects == "same":
            return Part(self.table.partition_by, self.keys)
        return Part(DATE_COLUMN, self.input_dates)

    def input_of(self, name: str) -> Part:
        """What is read of the input called `name`."""
        if isinstance(self.table.affects, str | AffectsSpec):
            return self.input
        affects = self.table.affects_of(name)
        if not isinstance(affects, AffectsSpec) or self.output_dates is None:
            return Part(DATE_COLUMN, None)
        back = [-offset for offset in affects.days]
        since = self.since and self.since + dt.timedelta(days=min(back))
        return Part(DATE_COLUMN, frozenset(_shifted(self.output_dates, back)), since)

    @property
    def full(self) -> bool:
        """Whether the whole table is rewritten."""
        return self.output.values is None

    @property
    def has_work(self) -> bool:
        """Whether anything is to be written."""
        return self.full or self.since is not None or bool(self.output.values)


def full_plan(table: GoldTableSpec, reason: str) -> GoldPlan:
    """Rebuild all of the table."""
    return GoldPlan(table, output_dates=None, input_dates=None, reason=reason)


def dated_plan(table: GoldTableSpec, dates: frozenset[dt.date]) -> GoldPlan:
    """Rebuild these dates, changed or not. Nothing is to be done where a table is not made of dates."""
    if not table.by_date:
        return GoldPlan(table, frozenset(), frozenset(), "it is not built by date")
    return GoldPlan(
        table,
        output_dates=dates,
        input_dates=_input_dates(table, dates),
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
        date_columns: the column with the dates of an input, where it is another than a bronze table's. Only what is
            of dates of bronze tables can be copies of events, and is widened by `dedupe`.
    """
    if not any(changes.values()):
        return GoldPlan(table, frozenset(), frozenset(), "its inputs have not changed")
    if table.affects == "same":
        return _same_plan(table, changes)
    if table.affects == "all":
        return full_plan(table, "its inputs changed, and any change affects all of it")
    touched: set[dt.date] = set()
    output: set[dt.date] = set()
    since: dt.date | None = None
    across = dedupe.across_days if dedupe else 0
    for name, change in changes.items():
        affects, column = table.affects_of(name), (date_columns or {}).get(name, DATE_COLUMN)
        if affects == "all" and change:
            return full_plan(table, f"{name} changed, and any change of it affects all")
        dates = _dates(change, column)
        if dates is None:
            reason = f"not distinguished by dates of {column}" if column else "it has no dates"
            return full_plan(table, f"{name}: {change.reason or reason}")
        touched |= dates
        if isinstance(affects, AffectsSpec):
            output |= _shifted(widened(dates, across), affects.days)
        elif dates:
            first = min(dates) - dt.timedelta(days=across if column == DATE_COLUMN else 0)
            since = first if since is None else min(since, first)
    rebuilt = frozenset(date for date in output if since is None or date < since)
    onwards = "" if since is None else f", and with them every date from {since} on"
    return GoldPlan(
        table,
        output_dates=rebuilt,
        input_dates=_input_dates(table, rebuilt),
        reason=f"{len(touched)} date(s) of its inputs changed{onwards}",
        since=since,
    )


def _input_dates(table: GoldTableSpec, output: frozenset[dt.date]) -> frozenset[dt.date]:
    days = table.affects.days if isinstance(table.affects, AffectsSpec) else ()
    return frozenset(_shifted(output, [-offset for offset in days]))


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
