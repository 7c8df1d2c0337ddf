"""Renders line and stacked area charts as SVG."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from deltaworks.charts.drawing import (
    NO_MARKS,
    ChartOptions,
    Frame,
    Marks,
    Point,
    escape,
    hover_strips,
    line_elements,
    mark_bands,
    mark_labels,
    path_data,
)
from deltaworks.charts.scales import format_full, log_steps, number_steps, number_ticks
from deltaworks.charts.series import Series, SeriesSet

#: Maximum number of positions with a tooltip. If there are more, every n-th has one.
_MAX_HOVER_STRIPS = 120
#: A line is broken at gaps longer than this multiple of the median distance.
_GAP_FACTOR = 4.0
_MAX_STEPS = 6


def line_chart(
    options: ChartOptions,
    data: SeriesSet,
    span: tuple[float, float],
    marks: Marks = NO_MARKS,
    *,
    from_zero: bool = False,
    is_log: bool = False,
    points: bool = False,
    split_at_gaps: bool = True,
) -> str:
    """Renders lines with breaks where values are missing.

    Args:
        from_zero: whether the axis always includes zero.
        is_log: whether the y axis is logarithmic. Values that are not above zero are missing then.
        points: whether every value is a point that shows it on hover, in place of one tooltip for all series at a
            position. For few values, and for series whose positions differ.
        split_at_gaps: whether a line over times also breaks where its positions are far apart.
    """
    if is_log:
        data = _without_values_below_zero(data)
    steps = _line_steps(data, from_zero=from_zero, is_log=is_log)
    frame = Frame.for_ranges(span, (steps[0], steps[-1]), options, is_log=is_log)
    drawn = (
        part
        for number, item in enumerate(data.series)
        for run in _contiguous_runs(sorted(item.values), split_at_gaps=split_at_gaps and data.kind == "time")
        for part in line_elements(_run_points(frame, item, run), number)
    )
    hover = _value_points(frame, data) if points else _hover_areas(frame, data)
    return _complete_svg(frame, data, marks, steps, [*drawn, *hover])


def area_chart(options: ChartOptions, data: SeriesSet, span: tuple[float, float], marks: Marks = NO_MARKS) -> str:
    """Renders stacked areas. A missing value counts as zero."""
    tops = _stack_edges(data)
    highest = max((top[x] for top in tops for x in top), default=0.0)
    lowest = min((top[x] for top in tops for x in top), default=0.0)
    steps = number_steps(min(lowest, 0.0), max(highest, 0.0), max_steps=_MAX_STEPS)
    frame = Frame.for_ranges(span, (steps[0], steps[-1]), options)
    drawn = []
    runs = _contiguous_runs(data.positions, split_at_gaps=data.kind == "time")
    kind = "soft" if len(data.series) == 1 else "solid"
    for number, top in enumerate(tops):
        below: Mapping[float, float] = tops[number - 1] if number else {}
        for run in runs:
            upper = [(frame.x(x), frame.y(top[x])) for x in run]
            lower = [(frame.x(x), frame.y(below.get(x, 0.0))) for x in reversed(run)]
            drawn.append(f'<path class="{kind} s{number}" d="{path_data([*upper, *lower])}Z"/>')
            drawn += line_elements(
                [None if data.series[number].values.get(x) is None else upper[at] for at, x in enumerate(run)], number
            )
    return _complete_svg(frame, data, marks, steps, [*drawn, *_hover_areas(frame, data)])


def sampled_positions(xs: Sequence[float]) -> set[float]:
    """Returns the positions that have tooltips: all, or every n-th including the last."""
    every = -(-len(xs) // _MAX_HOVER_STRIPS) or 1
    return {*xs[::-1][::every]}


def _complete_svg(frame: Frame, data: SeriesSet, marks: Marks, steps: Sequence[float], drawn: Iterable[str]) -> str:
    across = data.ticks((frame.x.low, frame.x.high), max_ticks=frame.options.max_ticks)
    axes = frame.axes(across, number_ticks(steps, frame.options.unit))
    return frame.svg([mark_bands(frame, marks), axes, *drawn, mark_labels(frame, marks)])


def _line_steps(data: SeriesSet, *, from_zero: bool, is_log: bool) -> list[float]:
    """Returns the ticks of the y axis."""
    values = [value for item in data.series for value in item.values.values() if value is not None]
    low, high = min(values, default=1.0 if is_log else 0.0), max(values, default=1.0)
    if is_log:
        return log_steps(low, high)
    # The axis starts at zero unless values vary by less than 40 %, so that small price movements do not look flat.
    starts_at_zero = low >= 0 and (from_zero or low < 0.6 * high)
    return number_steps(0.0 if starts_at_zero else low, max(high, 0.0) if low >= 0 else high, max_steps=_MAX_STEPS)


def _without_values_below_zero(data: SeriesSet) -> SeriesSet:
    series = [
        Series(item.name, {x: None if value is None or value <= 0 else value for x, value in item.values.items()})
        for item in data.series
    ]
    return dataclasses.replace(data, series=tuple(series))


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


def _value_points(frame: Frame, data: SeriesSet) -> Iterator[str]:
    """Yields a point with a title for each value."""
    for number, item in enumerate(data.series):
        for x, value in sorted(item.values.items()):
            if value is not None:
                text = data.hover_text(item, format_full(value, frame.options.unit))
                yield (
                    f'<circle class="point s{number}" cx="{frame.x(x)}" cy="{frame.y(value)}" r="3">'
                    f"<title>{escape(data.label(x))}: {escape(text)}</title></circle>"
                )


def _hover_areas(frame: Frame, data: SeriesSet) -> Iterator[str]:
    xs = sorted(sampled_positions(data.positions))
    pixels = [frame.x(x) for x in xs]
    for x, at, (left, right) in zip(xs, pixels, hover_strips(pixels, frame.x.start, frame.x.end), strict=True):
        lines = [
            (f"s{number}", data.hover_text(item, _value_text(item.values[x], frame.options)))
            for number, item in enumerate(data.series)
            if x in item.values
        ]
        yield frame.hover(left, right, at, lines, head=data.label(x))


def _value_text(value: float | None, options: ChartOptions) -> str:
    return "no value" if value is None else format_full(value, options.unit)
