"""Parts of tables that gold builds read and write: sets of dates or values, open-ended date ranges, and single hours.

In a table with a grain, single hours of a date can be rebuilt. A date is equivalent to its 24 hours.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from deltaworks.specs.gold import AffectsSpec, DedupeSpec
from deltaworks.tables.changed_hours import HOUR, hour_of
from deltaworks.tables.changes import Changes, sql_literal

#: Columns of bronze tables: the event date, which partitions them, and the event time.
DATE_COLUMN = "event_date"
TIME_COLUMN = "event_time"
_HOURS_PER_DAY = 24
#: A set of dates; None for all dates.
Dates = frozenset[dt.date] | None


@dataclass(frozen=True, slots=True)
class Part:
    """The rows with some values of a column, and of all dates from `since`. All rows if `values` is None.

    `hours` are start times in UTC of single hours, on dates that are not in `values`. It is None for tables without a
    grain, where events are deduplicated by date.
    """

    column: str
    values: Dates | frozenset[str]
    since: dt.date | None = None
    hours: frozenset[dt.datetime] | None = None

    def contains(self, value: dt.date | str) -> bool:
        """Whether the part contains rows of this value or hour."""
        if self.values is None or value in self.values:
            return True
        if isinstance(value, dt.datetime):
            return value in (self.hours or ()) or self.contains(value.date())
        return self.since is not None and isinstance(value, dt.date) and value >= self.since

    def covers(self, other: Part) -> bool:
        """Whether the part contains all rows of `other`: same column, and both by date or both by hour."""
        if self.column != other.column or self.is_hourly != other.is_hourly or self.values is None:
            return self.column == other.column and self.is_hourly == other.is_hourly
        if other.values is None or not all(map(self.contains, (*other.values, *(other.hours or ())))):
            return False
        return other.since is None or (self.since is not None and self.since <= other.since)

    def union(self, other: Part) -> Part:
        """Returns the union of two parts with the same column and unit."""
        if self.values is None or other.values is None:
            return replace(self, values=None, since=None, hours=frozenset() if self.is_hourly else None)
        since = min((date for date in (self.since, other.since) if date is not None), default=None)
        if self.hours is None or other.hours is None:
            return Part(self.column, frozenset({*self.values, *other.values}), since)
        return part_from_hours(self.column, {*self._all_hours(), *other._all_hours()}, since)

    def widen_days(self, days: int) -> Part:
        """Returns the part with `days` additional dates before and after each date."""
        if self.values is None:
            return self
        dates = (value for value in self.values if isinstance(value, dt.date))
        return replace(self, values=widen_dates(dates, days), since=self.since and self.since - dt.timedelta(days=days))

    def widen_hours(self, hours: int) -> Part:
        """Returns the part with `hours` additional hours before and after each hour."""
        if self.values is None:
            return self
        return part_from_hours(
            self.column,
            shift_hours(self._all_hours(), range(-hours, hours + 1)),
            self.since and _date_hours_earlier(self.since, hours),
        )

    def without_hours(self) -> Part:
        """Returns the part with each hour replaced by its date."""
        if self.values is None or self.hours is None:
            return replace(self, hours=None)
        return Part(self.column, frozenset({*self.values, *dates_of_hours(self.hours)}), self.since)

    @property
    def is_hourly(self) -> bool:
        """Whether the part belongs to a table with a grain."""
        return self.hours is not None

    @property
    def is_empty(self) -> bool:
        """Whether the part has no rows."""
        return not (self.values is None or self.values or self.since is not None or self.hours)

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Values as text, for example `2026-01-01`, `2026-01-01T13` (an hour) or `2026-01-01..` (open-ended); None for
        all rows.
        """
        if self.values is None:
            return None
        texts = [*map(str, sorted(self.values)), *(f"{hour:%Y-%m-%dT%H}" for hour in sorted(self.hours or ()))]
        return (*sorted(texts), *([] if self.since is None else [f"{self.since}.."]))

    def condition(self, column: str, time_column: str) -> str:
        """Returns a SQL condition for the part's rows; dates come first so that files are pruned.

        Args:
            column, time_column: the date and timestamp columns of the table.
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


def window_size(dedupe: DedupeSpec, part: Part) -> int:
    """Returns the dedupe window in hours for an hourly part, else in dates."""
    return (dedupe.within_hours or 0) if part.is_hourly else dedupe.within_days


def dedupe_window_part(dedupe: DedupeSpec, part: Part) -> Part:
    """Returns the part widened by the dedupe window. Its rows decide which rows of the part are duplicates."""
    if part.is_hourly:
        return part.widen_hours(window_size(dedupe, part))
    return part.widen_days(window_size(dedupe, part)) if part.column == DATE_COLUMN else part


def part_from_hours(column: str, hours: Iterable[dt.datetime], since: dt.date | None = None) -> Part:
    """Returns the part with these hours, and with all dates from `since`. A date with all 24 hours is included as a
    date.
    """
    by_date: dict[dt.date, set[dt.datetime]] = {}
    for hour in hours:
        if since is None or hour.date() < since:
            by_date.setdefault(hour.date(), set()).add(hour)
    full_dates = frozenset(date for date, date_hours in by_date.items() if len(date_hours) == _HOURS_PER_DAY)
    single_hours = frozenset(
        hour for date, date_hours in by_date.items() if date not in full_dates for hour in date_hours
    )
    return Part(column, full_dates, since, single_hours)


def hours_of_dates(dates: Iterable[dt.date]) -> set[dt.datetime]:
    """Returns all hours of these dates."""
    midnights = [dt.datetime.combine(date, dt.time(), dt.UTC) for date in dates]
    return {midnight + HOUR * number for midnight in midnights for number in range(_HOURS_PER_DAY)}


def dates_of_hours(hours: Iterable[dt.datetime]) -> set[dt.date]:
    """Returns the dates of these hours."""
    return {hour.date() for hour in hours}


def shift_hours(hours: Iterable[dt.datetime], offsets: Iterable[int]) -> set[dt.datetime]:
    """Returns each hour shifted by each offset, in hours."""
    steps = [HOUR * offset for offset in offsets]
    return {hour + step for hour in hours for step in steps}


def affected_hours(changed: Iterable[dt.datetime], affects: AffectsSpec) -> set[dt.datetime]:
    """Returns the hours of a gold table affected by changed hours of an input."""
    if affects.hours:
        return shift_hours(changed, affects.hours)
    return hours_of_dates(shift_dates(dates_of_hours(changed), affects.days))


def required_part(output: Part, affects: AffectsSpec) -> Part:
    """Returns the part of an input that is needed to rebuild a part of a gold table."""
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
    """Returns the changed hours of an input; None if they are not known completely.

    Args:
        column: the input's date column.
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
        # The statistics contain hours outside the partition's date and are inconsistent. Use all hours of the date.
        inside = hours is not None and all(hour.date() == date for hour in hours)
        changed |= hours if inside and hours is not None else hours_of_dates([date])
    return changed


def widen_dates(dates: Iterable[dt.date], days: int) -> frozenset[dt.date]:
    """Returns the dates with `days` additional dates before and after each."""
    return frozenset(shift_dates(dates, range(-days, days + 1)))


def shift_dates(dates: Iterable[dt.date], offsets: Iterable[int]) -> set[dt.date]:
    """Returns each date shifted by each offset, in days."""
    steps = [dt.timedelta(days=offset) for offset in offsets]
    return {date + step for date in dates for step in steps}


def _date_hours_earlier(date: dt.date, hours: int) -> dt.date:
    """Returns the date of the time that is `hours` before the start of a date."""
    return (dt.datetime.combine(date, dt.time(), dt.UTC) - HOUR * hours).date()


def _hour_ranges(hours: Iterable[dt.datetime]) -> Iterator[tuple[dt.datetime, dt.datetime]]:
    """Yields consecutive hours as (start, end) ranges."""
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
