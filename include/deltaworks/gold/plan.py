"""Which dates of a gold table have to be rebuilt, and which dates of its inputs that takes. Pure date arithmetic.

Three facts widen a touched date. A new or removed copy of an event can move the surviving copy by as many dates as
copies may lie apart. A gold table that looks across days changes on other dates than its input. And to rebuild a
date, everything that date is made of is read again.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from deltaworks.errors import ConfigError
from deltaworks.specs.gold import AffectsSpec, DedupeSpec, GoldTableSpec
from deltaworks.tables.changes import Changes

#: The column by which bronze tables are partitioned and dates are told apart.
DATE_COLUMN = "event_date"
#: A set of dates, or None for all there are.
Dates = frozenset[dt.date] | None


@dataclass(frozen=True, slots=True)
class GoldPlan:
    """What a rebuild of one gold table does. Dates are None for all; empty `output_dates` mean nothing to do."""

    table: GoldTableSpec
    output_dates: Dates
    input_dates: Dates
    reason: str

    @property
    def full(self) -> bool:
        """Whether the whole table is written anew."""
        return self.output_dates is None

    @property
    def has_work(self) -> bool:
        """Whether anything is to be written."""
        return self.output_dates is None or bool(self.output_dates)


def full_plan(table: GoldTableSpec, reason: str) -> GoldPlan:
    """Rebuild all of the table."""
    return GoldPlan(table, output_dates=None, input_dates=None, reason=reason)


def dated_plan(table: GoldTableSpec, dates: frozenset[dt.date]) -> GoldPlan:
    """Rebuild these dates, changed or not. Nothing is to be done where a table is not made of dates."""
    if not isinstance(table.affects, AffectsSpec):
        return GoldPlan(table, frozenset(), frozenset(), "it is not built by date: any change affects all of it")
    return GoldPlan(
        table,
        output_dates=dates,
        input_dates=frozenset(_shifted(dates, [-offset for offset in table.affects.days])),
        reason=f"{len(dates)} date(s) were asked for",
    )


def plan_rebuild(table: GoldTableSpec, changes: Mapping[str, Changes], dedupe: DedupeSpec | None) -> GoldPlan:
    """Rebuild what the changes of the table's inputs touch.

    Args:
        changes: what changed in each input since the last build, by the input's name.
    """
    if not any(changes.values()):
        return GoldPlan(table, frozenset(), frozenset(), "its inputs have not changed")
    if not isinstance(table.affects, AffectsSpec):
        return full_plan(table, "its inputs changed, and any change affects all of it")
    touched: set[dt.date] = set()
    for name, change in changes.items():
        dates = _dates(change)
        if dates is None:
            return full_plan(table, f"{name}: {change.reason or f'not told apart by {DATE_COLUMN}'}")
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


def dates_of(text: str) -> frozenset[dt.date] | None:
    """The dates a text names: `2026-01-01`, `2026-01-01,2026-01-03` or `2026-01-01..2026-01-07` (both included); None
    for an empty text.

    Raises:
        ConfigError: GOLD_DATES_INVALID.
    """
    found: set[dt.date] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        start, separator, end = part.partition("..")
        try:
            first = dt.date.fromisoformat(start)
            last = dt.date.fromisoformat(end) if separator else first
        except ValueError as error:
            raise ConfigError(
                "GOLD_DATES_INVALID", f"{part!r} names no date.", hint="Write 2026-01-01 or 2026-01-01..2026-01-07."
            ) from error
        found |= {first + dt.timedelta(days=day) for day in range((last - first).days + 1)}
    return frozenset(found) or None


def widened(dates: Iterable[dt.date], days: int) -> frozenset[dt.date]:
    """The dates and those up to `days` before and after each."""
    return frozenset(_shifted(dates, range(-days, days + 1)))


def _shifted(dates: Iterable[dt.date], offsets: Iterable[int]) -> set[dt.date]:
    steps = [dt.timedelta(days=offset) for offset in offsets]
    return {date + step for date in dates for step in steps}


def _dates(change: Changes) -> set[dt.date] | None:
    """The dates that changed, None where that cannot be told."""
    values = change.values(DATE_COLUMN)
    if values is None or None in values:
        return None
    return {dt.date.fromisoformat(value) for value in values if value is not None}
