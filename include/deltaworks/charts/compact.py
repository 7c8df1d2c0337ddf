"""Small charts without labels at their lines: the sparklines of dashboards, and the geometry of the console's charts.

The console's templates draw the geometry, in the colours of its theme. A value of None is a gap. Lines over time are
reduced to the minimum and maximum of each pixel column, so that no peak is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from deltaworks.charts.drawing import Point, line_elements, path_data, split_runs
from deltaworks.charts.scales import Scale, Tick, time_ticks

Value = float | None
_MAX_BAR_WIDTH = 24.0
_MAX_TICKS = 7
_SPARK_WIDTH, _SPARK_HEIGHT = 280, 46


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSeries:
    """A time series, oldest value first. Its values are formatted as `unit`: seconds, bytes, count or share."""

    name: str
    points: Sequence[tuple[datetime, Value]]
    unit: str = "count"

    @property
    def latest(self) -> Value:
        """The last value of the series that is not None."""
        return next((value for _, value in reversed(self.points) if value is not None), None)

    @property
    def maximum(self) -> Value:
        """The largest value of the series."""
        return max((value for _, value in self.points if value is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineDrawing:
    """A drawn line.

    The parts between gaps are `paths`, as SVG path data. Single values with gaps before and after them are `dots`. The
    values of `ticks` are pixels. The values at the lower and upper edge are `bottom` and `top`.
    """

    width: int
    height: int
    paths: tuple[str, ...]
    dots: tuple[Point, ...]
    top: float = 0.0
    bottom: float = 0.0
    ticks: tuple[Tick, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A drawn bar; `index` is the index of its value."""

    x: float
    y: float
    width: float
    height: float
    index: int


def sparkline(values: Sequence[Value], *, top: float | None = None, width: int = 96, height: int = 20) -> LineDrawing:
    """Returns a line without axes, from 0 to the maximum; of several lines in one scale, to their common `top`."""
    top = top or max((value for value in values if value is not None), default=0.0) or 1.0
    last = max(len(values) - 1, 1)
    points = [
        None if value is None else (1 + index / last * (width - 2), _y(value, top, height))
        for index, value in enumerate(values)
    ]
    paths, dots = _paths(points)
    return LineDrawing(width=width, height=height, paths=paths, dots=dots, top=top)


def line(series: TimeSeries, *, since: datetime, until: datetime, width: int = 720, height: int = 96) -> LineDrawing:
    """Returns a line over a time axis from `since` to `until`.

    Starts at zero unless values vary by less than 40 %.
    """
    low = since.timestamp()
    scale = Scale(low, max(until.timestamp(), low + 1), 0, width)
    inside = [(at, value) for at, value in series.points if since <= at <= until]
    values = [value for _, value in inside if value is not None]
    top, bottom = max(values, default=0.0) or 1.0, _baseline(values)
    placed = [
        None if value is None else (scale(at.timestamp()), _y(value - bottom, top - bottom, height))
        for at, value in inside
    ]
    paths, dots = _paths(_downsample(placed))
    ticks = time_ticks(low, until.timestamp(), max_ticks=_MAX_TICKS)
    return LineDrawing(
        width=width,
        height=height,
        paths=paths,
        dots=dots,
        top=top,
        bottom=bottom,
        ticks=tuple(Tick(scale(tick.value), tick.label) for tick in ticks),
    )


def bars(values: Sequence[Value], *, width: int = 360, height: int = 72) -> tuple[Bar, ...]:
    """Returns one bar per value, from 0 to the maximum. Every value above 0 is visible."""
    top = max((value for value in values if value is not None), default=0.0)
    if not values or top <= 0:
        return ()
    # Few values are not drawn wider than many.
    step = min(width / len(values), _MAX_BAR_WIDTH)
    drawn_bars = []
    for index, value in enumerate(values):
        if value is None or value <= 0:
            continue
        bar_height = max(1.0, value / top * height)
        drawn_bars.append(
            Bar(
                x=_round(index * step),
                y=_round(height - bar_height),
                width=_round(step * 0.8),
                height=_round(bar_height),
                index=index,
            )
        )
    return tuple(drawn_bars)


def area_sparkline(values: Sequence[Point]) -> str:
    """Renders a small filled line without axes. Returns an empty text for fewer than two points."""
    if len(values) < 2:
        return ""
    low, high = min(y for _, y in values), max(y for _, y in values)
    # Starts at zero unless values vary by less than 40 %, as the axis of a line chart does.
    low = 0.0 if 0 <= low < 0.6 * high else low
    across, up = Scale(values[0][0], values[-1][0], 0, _SPARK_WIDTH), Scale(low, high, _SPARK_HEIGHT - 3, 3)
    points = [(across(x), up(y)) for x, y in values]
    closed = [*points, (points[-1][0], _SPARK_HEIGHT), (points[0][0], _SPARK_HEIGHT)]
    return (
        f'<svg class="spark" viewBox="0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}" preserveAspectRatio="none" '
        f'aria-hidden="true"><path class="soft s0" d="{path_data(closed)}Z"/>'
        f"{''.join(line_elements(points, 0))}</svg>"
    )


def _baseline(values: Sequence[float]) -> float:
    """Returns the value at the lower edge of a chart: 0, or a little below values that vary by less than 40 %."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    return low - 0.1 * (high - low) if 0.6 * high <= low < high and low > 0 else 0.0


def _y(value: float, top: float, height: int) -> float:
    return height - 1 - max(0.0, min(value / top, 1.0)) * (height - 2)


def _downsample(points: Sequence[Point | None]) -> list[Point | None]:
    """Returns the minimum and maximum point of each pixel column, in their original order."""
    sampled: list[Point | None] = []
    column: list[Point] = []
    for point in points:
        if column and (point is None or int(point[0]) != int(column[0][0])):
            sampled += _extremes(column)
            column = []
        if point is None:
            sampled.append(None)
        else:
            column.append(point)
    return sampled + _extremes(column)


def _extremes(column: list[Point]) -> list[Point]:
    if len(column) <= 2:
        return list(column)
    least = min(range(len(column)), key=lambda index: column[index][1])
    greatest = max(range(len(column)), key=lambda index: column[index][1])
    return [column[index] for index in sorted({least, greatest})]


def _paths(points: Iterable[Point | None]) -> tuple[tuple[str, ...], tuple[Point, ...]]:
    """Splits points at gaps; returns the parts as paths, and single points separately."""
    runs = split_runs(None if point is None else (_round(point[0]), _round(point[1])) for point in points)
    return tuple(path_data(run) for run in runs if len(run) > 1), tuple(run[0] for run in runs if len(run) == 1)


def _round(number: float) -> float:
    return round(number, 1)
