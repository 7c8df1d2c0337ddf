"""Geometry of server-rendered SVG charts, which `templates/charts.html` draws.

Values are reduced to the minimum and maximum of each pixel column, so that no peak is lost. A value of None is drawn as
a gap. Colours come from the page's theme.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

Value = float | None
Point = tuple[float, float]
_MAX_BAR_WIDTH = 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
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


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis."""

    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineDrawing:
    """A drawn line.

    The parts between gaps are `paths`, as SVG path data. Single values with gaps before and after them are `dots`.
    """

    width: int
    height: int
    paths: tuple[str, ...]
    dots: tuple[Point, ...]
    top: float = 0.0
    ticks: tuple[Tick, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A drawn bar; `index` is the index of its value."""

    x: float
    y: float
    width: float
    height: float
    index: int


def sparkline(values: Sequence[Value], *, width: int = 96, height: int = 20) -> LineDrawing:
    """Returns a line without axes, from 0 to the maximum."""
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    last = max(len(values) - 1, 1)
    points = [
        None if value is None else (1 + index / last * (width - 2), _y(value, top, height))
        for index, value in enumerate(values)
    ]
    paths, dots = _paths(points)
    return LineDrawing(width=width, height=height, paths=paths, dots=dots, top=top)


def line(series: Series, *, since: datetime, until: datetime, width: int = 720, height: int = 96) -> LineDrawing:
    """Returns a line over a time axis from `since` to `until`, from 0 to the maximum."""
    span = max((until - since).total_seconds(), 1.0)
    inside = [(at, value) for at, value in series.points if since <= at <= until]
    top = max((value for _, value in inside if value is not None), default=0.0) or 1.0
    placed = [
        None if value is None else ((at - since).total_seconds() / span * width, _y(value, top, height))
        for at, value in inside
    ]
    paths, dots = _paths(_downsample(placed))
    return LineDrawing(
        width=width, height=height, paths=paths, dots=dots, top=top, ticks=time_ticks(since, until, width=width)
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


def time_ticks(since: datetime, until: datetime, *, width: int, max_ticks: int = 6) -> tuple[Tick, ...]:
    """Returns ticks at full hours or days, at most `max_ticks`."""
    span = max((until - since).total_seconds(), 1.0)
    step = next(
        (size for size in (900, 3_600, 7_200, 14_400, 21_600, 43_200, 86_400) if span / size <= max_ticks), 86_400
    )
    step = max(step, math.ceil(span / max_ticks / 86_400) * 86_400) if step == 86_400 else step
    first = math.ceil(since.timestamp() / step) * step
    ticks = []
    for number in range(max_ticks + 1):
        at = first + number * step
        if at > until.timestamp():
            break
        moment = datetime.fromtimestamp(at, tz=since.tzinfo)
        text = moment.strftime("%m-%d" if step >= 86_400 else "%H:%M")
        ticks.append(Tick(_round((at - since.timestamp()) / span * width), text))
    return tuple(ticks)


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
    runs: list[list[Point]] = [[]]
    for point in points:
        if point is None:
            runs.append([])
        else:
            runs[-1].append((_round(point[0]), _round(point[1])))
    paths = tuple("M" + "L".join(f"{x:g} {y:g}" for x, y in run) for run in runs if len(run) > 1)
    return paths, tuple(run[0] for run in runs if len(run) == 1)


def _round(number: float) -> float:
    return round(number, 1)
