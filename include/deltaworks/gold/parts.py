"""Parts of tables that gold builds read and write: dates, other values, every date from one on, and single hours.

In a table with a grain a date may be rebuilt in some of its hours. What is widened and shifted there are hours: a date
stands for all of its 24, and hours that make up a date become that date again.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from deltaworks.specs.gold import AffectsSpec
from deltaworks.tables.changed_hours import HOUR, hour_of
from deltaworks.tables.changes import Changes, sql_literal

#: The columns of bronze tables that have the date of an event, by which they are partitioned, and its instant.
DATE_COLUMN = "event_date"
TIME_COLUMN = "event_time"
_HOURS_PER_DAY = 24
#: A set of dates, or None for all there are.
Dates = frozenset[dt.date] | None


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of some values of a column, and of every date from `since` on; all rows where `values` is None.

    `hours`, by their first instants in UTC, are those of other dates than the whole ones. They are None in a table
    without a grain, where copies of events are told apart by dates.
    """

    column: str
    values: Dates | frozenset[str]
    since: dt.date | None = None
    hours: frozenset[dt.datetime] | None = None

    def contains(self, value: dt.date | str) -> bool:
        """Whether rows of this value, or of this hour, are in it."""
        if self.values is None or value in self.values:
            return True
        if isinstance(value, dt.datetime):
            return value in (self.hours or ()) or self.contains(value.date())
        return self.since is not None and isinstance(value, dt.date) and value >= self.since

    def covers(self, other: Part) -> bool:
        """Whether all rows of `other` are among its own, by the same column and alike in dates or hours."""
        if self.column != other.column or self.is_hourly != other.is_hourly or self.values is None:
            return self.column == other.column and self.is_hourly == other.is_hourly
        if other.values is None or not all(map(self.contains, (*other.values, *(other.hours or ())))):
            return False
        return other.since is None or (self.since is not None and self.since <= other.since)

    def union(self, other: Part) -> Part:
        """The rows of either, of the same column and alike in dates or hours."""
        if self.values is None or other.values is None:
            return replace(self, values=None, since=None, hours=frozenset() if self.is_hourly else None)
        since = min((date for date in (self.since, other.since) if date is not None), default=None)
        if self.hours is None or other.hours is None:
            return Part(self.column, frozenset({*self.values, *other.values}), since)
        return part_from_hours(self.column, {*self._all_hours(), *other._all_hours()}, since)

    def widen_days(self, days: int) -> Part:
        """Its dates and those up to `days` before and after each."""
        if self.values is None:
            return self
        dates = (value for value in self.values if isinstance(value, dt.date))
        return replace(self, values=widen_dates(dates, days), since=self.since and self.since - dt.timedelta(days=days))

    def widen_hours(self, hours: int) -> Part:
        """Its hours, those of its dates too, and those up to `hours` before and after each."""
        if self.values is None:
            return self
        return part_from_hours(
            self.column,
            shift_hours(self._all_hours(), range(-hours, hours + 1)),
            self.since and _date_hours_earlier(self.since, hours),
        )

    def without_hours(self) -> Part:
        """Its dates with all of their hours, for a table that is not told apart by hours."""
        if self.values is None or self.hours is None:
            return replace(self, hours=None)
        return Part(self.column, frozenset({*self.values, *dates_of_hours(self.hours)}), self.since)

    @property
    def is_hourly(self) -> bool:
        """Whether it is of a table with a grain."""
        return self.hours is not None

    @property
    def is_empty(self) -> bool:
        """Whether it has no rows."""
        return not (self.values is None or self.values or self.since is not None or self.hours)

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Its values as texts, hours as `2026-01-01T13`, the dates from `since` on as `2026-01-01..`; None for all."""
        if self.values is None:
            return None
        texts = [*map(str, sorted(self.values)), *(f"{hour:%Y-%m-%dT%H}" for hour in sorted(self.hours or ()))]
        return (*sorted(texts), *([] if self.since is None else [f"{self.since}.."]))

    def condition(self, column: str, time_column: str) -> str:
        """As SQL, what a row of some of its hours or of its dates meets; the dates first, by which files are chosen.

        Args:
            column, time_column: of the table that is read or written, with the date and the instant of a row.
        """
        date_conditions = [] if not self.values else [f"`{column}` IN ({_date_literals(self.values)})"]
        if self.since is not None:
            date_conditions.append(f"`{column}` >= {sql_literal(str(self.since), 'date')}")
        if not self.hours:
            return " OR ".join(date_conditions) or "false"
        hour_dates = [f"`{column}` IN ({_date_literals(dates_of_hours(self.hours))})"]
        hour_ranges = [
            f"(`{time_column}` >= {_timestamp_literal(first)} AND `{time_column}` < {_timestamp_literal(end)})"
            for first, end in _hour_ranges(self.hours)
        ]
        inside = f"{hour_dates[0]} AND ({' OR '.join(hour_ranges)})"
        return (
            f"({' OR '.join((*date_conditions, *hour_dates))}) AND ({' OR '.join((*date_conditions, f'({inside})'))})"
        )

    def _all_hours(self) -> Iterator[dt.datetime]:
        dates = (value for value in self.values or () if isinstance(value, dt.date))
        yield from hours_of_dates(dates)
        yield from self.hours or ()


def part_from_hours(column: str, hours: Iterable[dt.datetime], since: dt.date | None = None) -> Part:
    """The part with these hours: a date that has all of its hours is whole. Those from `since` on are in it anyway."""
    by_date: dict[dt.date, set[dt.datetime]] = {}
    for hour in hours:
        if since is None or hour.date() < since:
            by_date.setdefault(hour.date(), set()).add(hour)
    full_dates = frozenset(date for date, own in by_date.items() if len(own) == _HOURS_PER_DAY)
    single_hours = frozenset(hour for date, own in by_date.items() if date not in full_dates for hour in own)
    return Part(column, full_dates, since, single_hours)


def hours_of_dates(dates: Iterable[dt.date]) -> set[dt.datetime]:
    """All hours of these dates."""
    midnights = [dt.datetime.combine(date, dt.time(), dt.UTC) for date in dates]
    return {midnight + HOUR * number for midnight in midnights for number in range(_HOURS_PER_DAY)}


def dates_of_hours(hours: Iterable[dt.datetime]) -> set[dt.date]:
    """The dates in which these hours lie."""
    return {hour.date() for hour in hours}


def shift_hours(hours: Iterable[dt.datetime], offsets: Iterable[int]) -> set[dt.datetime]:
    """Each hour shifted by each of so many hours."""
    steps = [HOUR * offset for offset in offsets]
    return {hour + step for hour in hours for step in steps}


def affected_hours(changed: Iterable[dt.datetime], affects: AffectsSpec) -> set[dt.datetime]:
    """The hours of an answer that change where these of an input do."""
    if affects.hours:
        return shift_hours(changed, affects.hours)
    return hours_of_dates(shift_dates(dates_of_hours(changed), affects.days))


def required_part(output: Part, affects: AffectsSpec) -> Part:
    """What is to be read of an input that is affected so, for a part of an answer to be rebuilt."""
    if output.values is None:
        return Part(DATE_COLUMN, None, None, frozenset())
    hours = set(output._all_hours())
    if affects.hours:
        back = [-offset for offset in affects.hours]
        since = output.since and _date_hours_earlier(output.since, -min(back))
        return part_from_hours(DATE_COLUMN, shift_hours(hours, back), since)
    days = [-offset for offset in affects.days]
    since = output.since and output.since + dt.timedelta(days=min(days))
    return part_from_hours(DATE_COLUMN, hours_of_dates(shift_dates(dates_of_hours(hours), days)), since)


def hours_of_changes(change: Changes, column: str) -> set[dt.datetime] | None:
    """The hours in which rows of an input changed; None where that is not known of all of them.

    Args:
        column: the input's column with the dates of rows.
    """
    if change.is_unbounded:
        return None
    changed: set[dt.datetime] = set()
    for partition in change.partitions:
        try:
            date = dt.date.fromisoformat(dict(partition).get(column) or "")
        except ValueError:
            return None
        hours = change.hours.get(partition)
        # Hours beside the date would contradict it: then nothing is known but the date.
        inside = hours is not None and all(hour.date() == date for hour in hours)
        changed |= hours if inside and hours is not None else hours_of_dates([date])
    return changed


def widen_dates(dates: Iterable[dt.date], days: int) -> frozenset[dt.date]:
    """The dates and those up to `days` before and after each."""
    return frozenset(shift_dates(dates, range(-days, days + 1)))


def shift_dates(dates: Iterable[dt.date], offsets: Iterable[int]) -> set[dt.date]:
    """Each date shifted by each of so many days."""
    steps = [dt.timedelta(days=offset) for offset in offsets]
    return {date + step for date in dates for step in steps}


def _date_hours_earlier(date: dt.date, hours: int) -> dt.date:
    """The date that began or was under way so many hours before this one began."""
    return (dt.datetime.combine(date, dt.time(), dt.UTC) - HOUR * hours).date()


def _hour_ranges(hours: Iterable[dt.datetime]) -> Iterator[tuple[dt.datetime, dt.datetime]]:
    """The hours as spans of them that follow one another, with the end of each."""
    first: dt.datetime | None = None
    end = first
    for hour in sorted(map(hour_of, hours)):
        if first is not None and end is not None and hour != end:
            yield first, end
            first = None
        first, end = first or hour, hour + HOUR
    if first is not None and end is not None:
        yield first, end


def _date_literals(values: Iterable[object]) -> str:
    return ", ".join(sql_literal(str(value), "date") for value in sorted(values, key=str))


def _timestamp_literal(instant: dt.datetime) -> str:
    return f"TIMESTAMP'{instant:%Y-%m-%d %H:%M:%S}'"
