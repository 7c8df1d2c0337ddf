"""Generates the sessions of the New York Stock Exchange from its rules and special closures.

`python -m generator.trading_days include/pipelines/stocks/reference/xnys.csv` writes the reference file of pipeline
`stocks`. Pipelines compute no calendar at run time.

Sources for holidays and early closes are the exchange's published hours and its Rule 7.2.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

FIRST_YEAR, LAST_YEAR = 2000, 2027
_NEW_YORK = ZoneInfo("America/New_York")
_OPEN, _CLOSE, _EARLY_CLOSE = time(9, 30), time(16), time(13)
#: Closures for attacks, presidential mourning days and a hurricane.
_SPECIAL_CLOSURES = frozenset(
    date.fromisoformat(day)
    for day in (
        *("2001-09-11", "2001-09-12", "2001-09-13", "2001-09-14", "2004-06-11", "2007-01-02"),
        *("2012-10-29", "2012-10-30", "2018-12-05", "2025-01-09"),
    )
)
#: Early closes on the day after a holiday, which the rules do not contain.
_EXTRA_EARLY_CLOSES = frozenset({date(2002, 7, 5), date(2003, 12, 26)})
_REGULAR_CLOSE_EXCEPTIONS = frozenset({date(2002, 7, 3)})
_MONDAY, _THURSDAY, _FRIDAY, _SATURDAY, _SUNDAY = 0, 3, 4, 5, 6


@dataclass(frozen=True, slots=True)
class Session:
    """One session: its date in New York, opening and closing time."""

    day: date
    opens_at: datetime
    closes_at: datetime


def sessions(first: date = date(FIRST_YEAR, 1, 1), last: date = date(LAST_YEAR, 12, 31)) -> Iterator[Session]:
    """Yields all sessions between two dates, inclusive, in order."""
    closures = {day for year in range(first.year, last.year + 1) for day in holidays(year)} | _SPECIAL_CLOSURES
    for number in range((last - first).days + 1):
        day = first + timedelta(days=number)
        if day.weekday() < _SATURDAY and day not in closures:
            close = _EARLY_CLOSE if _closes_early(day) else _CLOSE
            yield Session(day, _to_utc(day, _OPEN), _to_utc(day, close))


def holidays(year: int) -> set[date]:
    """Returns the regular holidays of a year."""
    new_year = date(year, 1, 1)
    regular = {
        _nth_weekday(year, 1, _MONDAY, 3),
        _nth_weekday(year, 2, _MONDAY, 3),
        _easter_sunday(year) - timedelta(days=2),
        _nth_weekday(year, 6, _MONDAY, 1) - timedelta(days=7),  # the last Monday of May
        _observed_holiday(date(year, 7, 4)),
        _nth_weekday(year, 9, _MONDAY, 1),
        _nth_weekday(year, 11, _THURSDAY, 4),
        _observed_holiday(date(year, 12, 25)),
    }
    if new_year.weekday() != _SATURDAY:  # New Year's Day on a Saturday is not observed
        regular.add(_observed_holiday(new_year))
    if year >= 2022:
        regular.add(_observed_holiday(date(year, 6, 19)))
    return regular


def _closes_early(day: date) -> bool:
    if day in _EXTRA_EARLY_CLOSES:
        return True
    if day in _REGULAR_CLOSE_EXCEPTIONS:
        return False
    if (day.month, day.day) == (7, 3):
        return day.weekday() < _FRIDAY
    if (day.month, day.day) == (12, 24):
        return day.weekday() < _FRIDAY
    return day == _nth_weekday(day.year, 11, _THURSDAY, 4) + timedelta(days=1)


def _nth_weekday(year: int, month: int, weekday: int, number: int) -> date:
    first = date(year, month, 1)
    return first + timedelta(days=(weekday - first.weekday()) % 7 + 7 * (number - 1))


def _observed_holiday(day: date) -> date:
    shift = {_SATURDAY: -1, _SUNDAY: 1}.get(day.weekday(), 0)
    return day + timedelta(days=shift)


def _easter_sunday(year: int) -> date:
    """Computes Easter Sunday by the anonymous Gregorian algorithm (Meeus, Astronomical Algorithms)."""
    golden, century, year_of_century = year % 19, year // 100, year % 100
    leap, corrected = century // 4, (century + 8) // 25
    epact = (19 * golden + century - leap - (century - corrected + 1) // 3 + 15) % 30
    weekday = (32 + 2 * (century % 4) + 2 * (year_of_century // 4) - epact - year_of_century % 4) % 7
    shift = (golden + 11 * epact + 22 * weekday) // 451
    month, day = divmod(epact + weekday - 7 * shift + 114, 31)
    return date(year, month, day + 1)


def _to_utc(day: date, at: time) -> datetime:
    return datetime.combine(day, at, _NEW_YORK).astimezone(UTC)


def write_calendar(path: Path) -> int:
    """Writes the calendar as CSV; returns the number of sessions."""
    lines = [f"{session.day},{_iso_text(session.opens_at)},{_iso_text(session.closes_at)}" for session in sessions()]
    path.write_text("\n".join(["session_date,opens_at,closes_at", *lines, ""]))
    return len(lines)


def _iso_text(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


if __name__ == "__main__":
    write_calendar(Path(sys.argv[1]))
