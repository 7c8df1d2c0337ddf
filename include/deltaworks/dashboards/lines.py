"""Renders line and stacked area charts as SVG."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from deltaworks.dashboards.drawing import Frame, hover_strips
from deltaworks.dashboards.marks import NO_MARKS, Marks, mark_bands, mark_labels
from deltaworks.dashboards.scales import Tick, number_steps, number_ticks, time_ticks
from deltaworks.dashboards.series import Series, SeriesSet
from deltaworks.dashboards.values import format_cell, format_full, format_time
from deltaworks.specs.dashboards import PanelSpec

Point = tuple[float, float]
#: Maximum number of positions with a tooltip. If there are more, every n-th has one.
_MAX_HOVER_STRIPS = 120
#: A line is broken at gaps longer than this multiple of the median distance.
_GAP_FACTOR = 4.0
_SPARK_WIDTH, _SPARK_HEIGHT = 280, 46


def line_chart(panel: PanelSpec, data: SeriesSet, span: tuple[float, float], marks: Marks = NO_MARKS) -> str:
    """Renders lines with breaks where values are missing."""
    values = [value for item in data.series for value in item.values.values() if value is not None]
    low, high = min(values, default=0.0), max(values, default=1.0)
    # The axis starts at zero unless values vary by less than 40 %, so that small price movements do not look flat.
    steps = number_steps(0.0 if 0 <= low < 0.6 * high else low, max(high, 0.0) if low >= 0 else high, max_steps=6)
    frame = Frame.for_ranges(span, (steps[0], steps[-1]), wide=panel.wide)
    drawn = (
        part
        for number, item in enumerate(data.series)
        for run in _contiguous_runs(sorted(item.values), split_at_gaps=data.kind == "time")
        for part in _line_elements(_run_points(frame, item, run), number)
    )
    axes = frame.axes(x_ticks(data, span, panel), number_ticks(steps, panel.unit))
    hover_areas = [*_hover_areas(panel, frame, data), mark_labels(frame, marks)]
    return frame.svg(panel.title, [mark_bands(frame, marks), axes, *drawn, *hover_areas])


def area_chart(panel: PanelSpec, data: SeriesSet, span: tuple[float, float], marks: Marks = NO_MARKS) -> str:
    """Renders stacked areas. A missing value counts as zero."""
    tops = _stack_edges(data)
    highest = max((top[x] for top in tops for x in top), default=0.0)
    lowest = min((top[x] for top in tops for x in top), default=0.0)
    steps = number_steps(min(lowest, 0.0), max(highest, 0.0), max_steps=6)
    frame = Frame.for_ranges(span, (steps[0], steps[-1]), wide=panel.wide)
    drawn = []
    runs = _contiguous_runs(data.positions, split_at_gaps=data.kind == "time")
    kind = "soft" if len(data.series) == 1 else "solid"
    for number, top in enumerate(tops):
        below: Mapping[float, float] = tops[number - 1] if number else {}
        for run in runs:
            upper = [(frame.x(x), frame.y(top[x])) for x in run]
            lower = [(frame.x(x), frame.y(below.get(x, 0.0))) for x in reversed(run)]
            drawn.append(f'<path class="{kind} s{number}" d="{_path_data([*upper, *lower])}Z"/>')
            drawn += _line_elements(
                [None if data.series[number].values.get(x) is None else upper[at] for at, x in enumerate(run)], number
            )
    axes = frame.axes(x_ticks(data, span, panel), number_ticks(steps, panel.unit))
    hover_areas = [*_hover_areas(panel, frame, data), mark_labels(frame, marks)]
    return frame.svg(panel.title, [mark_bands(frame, marks), axes, *drawn, *hover_areas])


def sparkline(values: Sequence[Point]) -> str:
    """Renders a small line without axes. Returns an empty text for fewer than two points."""
    if len(values) < 2:
        return ""
    low, high = min(y for _, y in values), max(y for _, y in values)
    low = 0.0 if 0 <= low < 0.6 * high else low
    start, end = values[0][0], values[-1][0]
    points = [
        (
            round((x - start) / ((end - start) or 1.0) * _SPARK_WIDTH, 1),
            round(_SPARK_HEIGHT - 3 - (y - low) / ((high - low) or 1.0) * (_SPARK_HEIGHT - 6), 1),
        )
        for x, y in values
    ]
    closed = [*points, (points[-1][0], _SPARK_HEIGHT), (points[0][0], _SPARK_HEIGHT)]
    return (
        f'<svg class="spark" viewBox="0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}" preserveAspectRatio="none" '
        f'aria-hidden="true"><path class="soft s0" d="{_path_data(closed)}Z"/>'
        f"{''.join(_line_elements(points, 0))}</svg>"
    )


def x_ticks(data: SeriesSet, span: tuple[float, float], panel: PanelSpec) -> list[Tick]:
    """Returns the ticks of the x axis."""
    max_ticks = 16 if panel.wide else 8
    if data.kind == "time":
        return time_ticks(*span, max_ticks=max_ticks, dates=data.is_dates)
    if data.kind == "number":
        return [
            tick
            for tick in number_ticks(number_steps(*span, max_steps=max_ticks), None)
            if span[0] <= tick.value <= span[1]
        ]
    every = -(-len(data.positions) // max_ticks)
    return [Tick(x, data.labels[x]) for x in data.positions[::every]]


def position_label(data: SeriesSet, x: float) -> str:
    """Returns the label of an x position."""
    if x in data.labels:
        return data.labels[x]
    return format_time(dt.datetime.fromtimestamp(x, dt.UTC)) if data.kind == "time" else format_cell(x)


def _contiguous_runs(xs: Sequence[float], *, split_at_gaps: bool) -> list[list[float]]:
    """Splits ascending positions at gaps into runs."""
    distances = sorted(after - before for before, after in pairwise(xs))
    median_distance = distances[len(distances) // 2] if distances else 0.0
    runs: list[list[float]] = []
    for x in xs:
        if not runs or (split_at_gaps and x - runs[-1][-1] > _GAP_FACTOR * median_distance):
            runs.append([])
        runs[-1].append(x)
    return runs


def sampled_positions(xs: Sequence[float]) -> set[float]:
    """Returns the positions that have tooltips: all, or every n-th including the last."""
    every = -(-len(xs) // _MAX_HOVER_STRIPS) or 1
    return {*xs[::-1][::every]}


def _stack_edges(data: SeriesSet) -> list[dict[float, float]]:
    """Returns the upper edge of each stacked series."""
    edges: list[dict[float, float]] = []
    for item in data.series:
        below = edges[-1] if edges else {}
        edges.append({x: below.get(x, 0.0) + (item.values.get(x) or 0.0) for x in data.positions})
    return edges


def _run_points(frame: Frame, item: Series, run: Iterable[float]) -> list[Point | None]:
    """Returns the points of a series along a run of positions; None for null values."""
    values = [(x, item.values[x]) for x in run]
    return [None if value is None else (frame.x(x), frame.y(value)) for x, value in values]


def _line_elements(points: Sequence[Point | None], number: int) -> Iterator[str]:
    """Yields the SVG elements of a line. A single point becomes a dot."""
    piece: list[Point] = []
    for point in [*points, None]:
        if point is not None:
            piece.append(point)
            continue
        if len(piece) == 1:
            yield f'<circle class="fill s{number}" cx="{piece[0][0]}" cy="{piece[0][1]}" r="3"/>'
        elif piece:
            yield f'<path class="line s{number}" d="{_path_data(piece)}"/>'
        piece = []


def _path_data(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in points)


def _hover_areas(panel: PanelSpec, frame: Frame, data: SeriesSet) -> Iterator[str]:
    xs = sorted(sampled_positions(data.positions))
    pixels = [frame.x(x) for x in xs]
    for x, at, (left, right) in zip(xs, pixels, hover_strips(pixels, frame.x.start, frame.x.end), strict=True):
        lines = [
            (f"s{number}", _hover_text(item, x, panel, is_single_series=len(data.series) == 1))
            for number, item in enumerate(data.series)
            if x in item.values
        ]
        yield frame.hover(left, right, at, lines, head=position_label(data, x))


def _hover_text(item: Series, x: float, panel: PanelSpec, *, is_single_series: bool) -> str:
    value = item.values[x]
    text = "no value" if value is None else format_full(value, panel.unit)
    return text if is_single_series and panel.by is None else f"{item.name[:40]}  {text}"
