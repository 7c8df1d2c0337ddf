"""`A..B` has one meaning for every command: dates are inclusive, and an empty range is refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.cli.rules import _parse_span as backtest_span
from deltaworks.control.clock import parse_time_range
from deltaworks.dashboards.spans import parse_span
from deltaworks.errors import ConfigError
from deltaworks.gold.plan import parse_dates
from deltaworks.operations.replay import FilterOptions, build_filter
from deltaworks.operations.reprocess import ReprocessOptions, build_request
from deltaworks.specs.dashboards import DashboardSpec
from deltaworks.testing import present

DATES = st.dates(dt.date(1970, 1, 1), dt.date(2099, 12, 31))
LENGTHS = st.integers(0, 40)


def _dates_between(start: dt.datetime, end: dt.datetime) -> set[dt.date]:
    """Returns the dates of a half-open range of times, day by day."""
    dates = set()
    while start < end:
        dates.add(start.date())
        start += dt.timedelta(days=1)
    return dates


def _reprocess(option: str) -> Callable[[dt.date, dt.date], set[dt.date]]:
    def selected(first: dt.date, last: dt.date) -> set[dt.date]:
        request = present(build_request(ReprocessOptions(**{option: f"{first}..{last}"})))
        start, end = (dt.datetime.fromisoformat(text) for text in getattr(request.selection, option))
        return _dates_between(start, end)

    return selected


def _quarantine(first: dt.date, last: dt.date) -> set[dt.date]:
    rows = build_filter(FilterOptions(from_date=str(first), to_date=str(last)))
    assert rows.from_date is not None
    assert rows.to_date is not None
    return _dates_between(*(dt.datetime.combine(day, dt.time()) for day in (rows.from_date, rows.to_date))) | {last}


def _dashboard(first: dt.date, last: dt.date) -> set[dt.date]:
    span = parse_span(DashboardSpec.model_construct(hours=1.0), since=str(first), until=str(last))
    return _dates_between(span.since, span.until)


READERS: dict[str, Callable[[dt.date, dt.date], Any]] = {
    "gold": lambda first, last: set(parse_dates(f"{first}..{last}") or ()),
    "events": _reprocess("events"),
    "arrived": _reprocess("arrived"),
    "quarantine": _quarantine,
    "backtest": lambda first, last: _dates_between(*backtest_span(str(first), str(last))),
    "dashboard": _dashboard,
}


@pytest.mark.parametrize("reader", READERS)
@given(first=DATES, days=LENGTHS)
def test_both_dates_of_a_range_are_included(reader: str, first: dt.date, days: int) -> None:
    last = first + dt.timedelta(days=days)

    assert READERS[reader](first, last) == {first + dt.timedelta(days=day) for day in range(days + 1)}


@pytest.mark.parametrize("reader", READERS)
def test_an_empty_range_is_refused(reader: str) -> None:
    with pytest.raises(ConfigError):
        READERS[reader](dt.date(2026, 1, 2), dt.date(2026, 1, 1))


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("2026-01-02", "2026-01-02T00:00", "2026-01-03T00:00"),
        (" 2026-01-02 .. 2026-01-02 ", "2026-01-02T00:00", "2026-01-03T00:00"),
        ("2026-01-02T10:00..2026-01-02T11:30", "2026-01-02T10:00", "2026-01-02T11:30"),
        ("2026-01-02T10:00..2026-01-02", "2026-01-02T10:00", "2026-01-03T00:00"),
        ("2026-01-02..2026-01-02T00:00:01", "2026-01-02T00:00", "2026-01-02T00:00:01"),
        ("2026-01-02T10:00+02:00..2026-01-02T08:30Z", "2026-01-02T08:00", "2026-01-02T08:30"),
    ],
)
def test_times_end_where_they_say(text: str, start: str, end: str) -> None:
    expected = tuple(dt.datetime.fromisoformat(at).replace(tzinfo=dt.UTC) for at in (start, end))

    assert parse_time_range(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "..",
        "2026",
        "2026-01-01..",
        "..2026-01-01",
        "2026-01-01T10:00",
        "2026-01-01T10:00..2026-01-01T10:00",
        "2026-01-02..2026-01-01",
        "2026-01-01...2026-01-02",
        "9999-12-31",
        "a..b",
    ],
)
def test_a_range_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_time_range(text)
