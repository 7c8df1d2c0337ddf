"""Axis ticks are round, inside the range, and few."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.charts.scales import (
    Scale,
    format_age,
    format_cell,
    format_full,
    format_short,
    number_steps,
    time_ticks,
    to_number,
)

START = dt.datetime(2026, 3, 1, 10, 7, tzinfo=dt.UTC).timestamp()
HOUR, DAY = 3_600.0, 86_400.0


@settings(deadline=None)
@given(st.floats(-1e12, 1e12, allow_nan=False), st.floats(1e-6, 1e12), st.integers(3, 12))
def test_steps_of_numbers_cover_the_values_evenly_and_are_few(low: float, span: float, most: int) -> None:
    high = low + span
    steps = number_steps(low, high, max_steps=most)

    widths = [(after - before) / (steps[1] - steps[0]) for before, after in pairwise(steps)]
    tolerance = 1e-6 * max(abs(low), abs(high), 1.0)
    assert widths == pytest.approx([1.0] * len(widths), rel=1e-3)
    assert steps[0] <= low + tolerance
    assert steps[-1] >= high - tolerance
    assert len(steps) <= most + 2


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 9.3, [0, 2, 4, 6, 8, 10]), (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (0, 0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
     (-3, 2, [-3, -2, -1, 0, 1, 2]), (0.012, 0.019, [0.012, 0.014, 0.016, 0.018, 0.02])],
)  # fmt: skip
def test_steps_are_round(low: float, high: float, expected: list[float]) -> None:
    assert number_steps(low, high, max_steps=6) == pytest.approx(expected)


@settings(deadline=None)
@given(st.floats(0, 4e9), st.floats(1, 3e9), st.integers(4, 16))
def test_ticks_of_time_lie_within_and_are_few(low: float, span: float, most: int) -> None:
    ticks = time_ticks(low, low + span, max_ticks=most)

    assert all(low <= tick.value <= low + span for tick in ticks)
    assert len(ticks) <= most + 1


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (20 * 60, ["10:10", "10:15", "10:20", "10:25"]),
        (4 * HOUR, ["11:00", "12:00", "13:00", "14:00"]),
        (24 * HOUR, ["12:00", "18:00", "2 Mar", "06:00"]),
        (5 * DAY, ["2 Mar", "3 Mar", "4 Mar", "5 Mar", "6 Mar"]),
        (200 * DAY, ["Apr 2026", "May 2026", "Jun 2026", "Jul 2026", "Aug 2026", "Sep 2026"]),
    ],
)
def test_time_ticks_follow_clock_and_calendar_units(span: float, expected: list[str]) -> None:
    assert [tick.label for tick in time_ticks(START, START + span, max_ticks=7)] == expected


def test_a_scale_runs_downwards_and_ends_at_its_edges() -> None:
    scale = Scale(0, 10, 200, 0)

    assert [scale(value) for value in (-5, 0, 5, 10, 99)] == [200, 200, 100, 0, 0]
    assert Scale(3, 3, 0, 10)(3) == 0


@pytest.mark.parametrize(
    ("value", "unit", "on_axis", "in_full"),
    [
        (0, None, "0", "0"),
        (1_234, None, "1.23k", "1,234"),
        (2_500_000, None, "2.5M", "2,500,000"),
        (0.01234, None, "0.0123", "0.01234"),
        (-12.5, "percent", "-12.5 %", "-12.5 %"),
        (1_536, "bytes", "1.5 KiB", "1.5 KiB"),
        (3 << 30, "bytes", "3 GiB", "3 GiB"),
        (90, "seconds", "1.5 min", "1.5 min"),
        (250, "milliseconds", "250 ms", "250 ms"),
        (2_000, "milliseconds", "2 s", "2 s"),
        (1_234.5, "money", "1.23k", "1,234.50"),
        (7, "per_second", "7/s", "7/s"),
    ],
)
def test_numbers_are_written_with_their_units(value: float, unit: Any, on_axis: str, in_full: str) -> None:
    assert (format_short(value, unit), format_full(value, unit)) == (on_axis, in_full)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ""),
        (True, "yes"),
        (Decimal("12.50"), "12.50"),
        (float("nan"), "nan"),
        (dt.datetime(2026, 3, 1, 12, 0, tzinfo=dt.timezone(dt.timedelta(hours=2))), "2026-03-01 10:00"),
        (dt.date(2026, 3, 1), "2026-03-01"),
        ("x" * 300, "x" * 200 + "…"),
    ],
)
def test_cells_show_result_values(value: Any, expected: str) -> None:
    assert format_cell(value) == expected


def test_only_numbers_are_converted() -> None:
    values = (None, 2, Decimal("1.5"), dt.timedelta(minutes=1), float("inf"))

    assert [to_number(value) for value in values] == [None, 2.0, 1.5, 60.0, None]
    with pytest.raises(TypeError, match="is not a number"):
        to_number("12")


@pytest.mark.parametrize(
    ("seconds", "expected"), [(-5, "0 s"), (40, "40 s"), (600, "10 min"), (10 * HOUR, "10 h"), (9 * DAY, "9 days")]
)
def test_ages_are_short(seconds: float, expected: str) -> None:
    assert format_age(seconds) == expected
