"""Geometry of charts: nothing outside the drawing, gaps, and peaks that survive downsampling."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from deltaworks.charts.compact import TimeSeries, bars, line, sparkline

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
VALUES = st.lists(st.none() | st.floats(0, 1e15, allow_nan=False), max_size=300)


def points_of(drawn: object) -> list[tuple[float, float]]:
    pairs = re.findall(r"(-?[\d.e+-]+) (-?[\d.e+-]+)", " ".join(drawn.paths))  # type: ignore[attr-defined]
    return [(float(x), float(y)) for x, y in pairs] + list(drawn.dots)  # type: ignore[attr-defined]


@given(VALUES)
def test_a_sparkline_stays_in_its_box_and_draws_each_value(values: list[float | None]) -> None:
    drawn = sparkline(values)

    assert all(0 <= x <= drawn.width and 0 <= y <= drawn.height for x, y in points_of(drawn))
    assert len(points_of(drawn)) == sum(value is not None for value in values)


def test_a_gap_is_not_drawn() -> None:
    drawn = sparkline([1, 2, None, 3, None, 4, 5])

    assert len(drawn.paths) == 2
    assert len(drawn.dots) == 1


@given(st.lists(st.floats(0, 1e9, allow_nan=False), min_size=1, max_size=5_000), st.integers(0, 4_999))
def test_a_peak_survives_downsampling(values: list[float], place: int) -> None:
    values[place % len(values)] = 2e9
    series = TimeSeries(
        name="lag", points=[(NOW + timedelta(seconds=index), value) for index, value in enumerate(values)]
    )
    drawn = line(series, since=NOW, until=NOW + timedelta(seconds=max(len(values) - 1, 1)))

    assert min(y for _, y in points_of(drawn)) == 1
    assert len(points_of(drawn)) <= 2 * (drawn.width + 1)


def test_points_outside_the_span_are_not_drawn() -> None:
    series = TimeSeries(name="rows", points=[(NOW - timedelta(hours=9), 10.0), (NOW - timedelta(hours=1), 2.0)])
    drawn = line(series, since=NOW - timedelta(hours=6), until=NOW)

    assert len(points_of(drawn)) == 1
    assert drawn.top == 2.0


@given(VALUES)
def test_every_value_above_zero_has_a_visible_bar(values: list[float | None]) -> None:
    drawn = bars(values)

    assert [bar.index for bar in drawn] == [i for i, value in enumerate(values) if value is not None and value > 0]
    assert all(bar.height >= 1 for bar in drawn)
    assert all(bar.width <= 24 for bar in drawn), "one day is a bar and no block"


@given(st.integers(60, 60 * 86_400))
def test_an_axis_has_few_ticks_in_order_within_it(seconds: int) -> None:
    series = TimeSeries(name="rows", points=())
    ticks = line(series, since=NOW - timedelta(seconds=seconds), until=NOW).ticks

    assert len(ticks) <= 8
    assert [tick.value for tick in ticks] == sorted(tick.value for tick in ticks)
    assert all(0 <= tick.value <= 720 for tick in ticks)


def test_sparklines_of_one_scale_show_which_is_busier() -> None:
    quiet, busy = sparkline([1.0, 1.0], top=100.0), sparkline([100.0, 100.0], top=100.0)

    assert quiet.paths != busy.paths
    assert sparkline([1.0, 1.0]).paths == busy.paths


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=20))
def test_the_range_of_a_chart_holds_its_values(values: list[float]) -> None:
    points = [(NOW + timedelta(minutes=number), value) for number, value in enumerate(values)]

    drawn = line(TimeSeries(name="a", points=points), since=NOW, until=NOW + timedelta(hours=1))

    assert drawn.bottom <= min(values) <= max(values) <= max(drawn.top, 1.0)
    assert drawn.bottom == 0 or min(values) >= 0.6 * max(values), "zero unless the values are close together"
