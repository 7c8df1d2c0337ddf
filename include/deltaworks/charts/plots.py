"""Renders charts as SVG: lines, stacked areas, columns, rows and histograms."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

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
    split_runs,
    svg,
)
from deltaworks.charts.scales import (
    Scale,
    Series,
    SeriesSet,
    Tick,
    format_full,
    format_short,
    log_steps,
    nice_step,
    number_steps,
    number_ticks,
    to_number,
)

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
    band: tuple[SeriesSet, SeriesSet] | None = None,
) -> str:
    """Renders lines with breaks where values are missing.

    Args:
        band: lower and upper edges of a band behind each series that has edges under its name.
        from_zero: whether the axis always includes zero.
        is_log: whether the y axis is logarithmic. Values that are not above zero are missing then.
        points: whether every value is a point that shows it on hover, in place of one tooltip for all series at a
            position. For few values, and for series whose positions differ.
        split_at_gaps: whether a line over times also breaks where its positions are far apart.
    """
    if is_log:
        data = _without_values_below_zero(data)
    steps = _line_steps(data, *(band or ()), from_zero=from_zero, is_log=is_log)
    frame = Frame.for_ranges(span, (steps[0], steps[-1]), options, is_log=is_log)
    drawn = (
        part
        for number, item in enumerate(data.series)
        for run in _contiguous_runs(sorted(item.values), split_at_gaps=split_at_gaps and data.kind == "time")
        for part in line_elements(_run_points(frame, item, run), number)
    )
    hover = _value_points(frame, data) if points else _hover_areas(frame, data)
    return _complete_svg(frame, data, marks, steps, [*_bands(frame, data, band), *drawn, *hover])


def _bands(frame: Frame, data: SeriesSet, band: tuple[SeriesSet, SeriesSet] | None) -> Iterator[str]:
    """Yields a polygon for each run of positions at which a series has both edges."""
    if band is None:
        return
    low, high = ({item.name: item.values for item in edge.series} for edge in band)
    for number, item in enumerate(data.series):
        lower, upper = low.get(item.name, {}), high.get(item.name, {})
        for run in _contiguous_runs(sorted(lower), split_at_gaps=data.kind == "time"):
            edges: list[tuple[Point, Point] | None] = []
            for x in run:
                bottom, top = lower[x], upper.get(x)
                edges.append(
                    None
                    if bottom is None or top is None
                    else ((frame.x(x), frame.y(bottom)), (frame.x(x), frame.y(top)))
                )
            for part in split_runs(edges):
                outline = [*(top for _, top in part), *(bottom for bottom, _ in reversed(part))]
                yield f'<path class="band s{number}" d="{path_data(outline)}Z"/>'


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


def _line_steps(*drawn: SeriesSet, from_zero: bool, is_log: bool) -> list[float]:
    """Returns the ticks of the y axis."""
    series = (item for data in drawn for item in data.series)
    values = [value for item in series for value in item.values.values() if value is not None]
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


# Bars.

#: Maximum rows of a text bar chart. More rows need a table panel.
MAX_ROWS = 12
_MAX_BINS = 30
_ROW_HEIGHT, _BAR_HEIGHT, _TITLE_HEIGHT = 24, 16, 18
_LABEL_WIDTH, _VALUE_WIDTH = 164, 70
_LABEL_CHARACTERS = 21
#: Share of the available width that a column fills.
_COLUMN_FILL_SHARE = 0.86


def column_chart(options: ChartOptions, data: SeriesSet, span: tuple[float, float], marks: Marks = NO_MARKS) -> str:
    """Renders columns. Several series are stacked."""
    step = data.step
    span = (min(span[0], data.positions[0]), max(span[1], data.positions[-1] + step))
    highest = max((sum(max(value, 0.0) for value in _values_at(data, x)) for x in data.positions), default=0.0)
    lowest = min((sum(min(value, 0.0) for value in _values_at(data, x)) for x in data.positions), default=0.0)
    steps = number_steps(min(lowest, 0.0), max(highest, 0.0), max_steps=6)
    frame = Frame.for_ranges(span, (steps[0], steps[-1]), options)
    drawn, hover_areas = [], []
    shown = sampled_positions(data.positions)
    for x in data.positions:
        left, right = frame.x(x), frame.x(x + step)
        margin = (right - left) * (1 - _COLUMN_FILL_SHARE) / 2
        lines = []
        up = down = 0.0
        for number, item in enumerate(data.series):
            value = item.values.get(x)
            if value is None:
                continue
            start = up if value >= 0 else down
            up, down = (up + value, down) if value >= 0 else (up, down + value)
            top, bottom = sorted((frame.y(start), frame.y(start + value)))
            drawn.append(_rect(f"fill s{number}", left + margin, top, right - left - 2 * margin, bottom - top))
            lines.append((f"s{number}", data.hover_text(item, format_full(value, options.unit))))
        if x in shown:
            hover_areas.append(frame.hover(left, right, round((left + right) / 2, 1), lines, head=data.label(x)))
    # A date label is centred on its column.
    shift = step / 2 if data.is_dates else 0.0
    across = [
        Tick(tick.value + shift, tick.label)
        for tick in data.ticks(span, max_ticks=options.max_ticks)
        if tick.value + shift <= span[1]
    ]
    axes = frame.axes(across, number_ticks(steps, options.unit))
    return frame.svg([mark_bands(frame, marks), axes, *drawn, *hover_areas, mark_labels(frame, marks)])


def row_chart(
    options: ChartOptions,
    data: SeriesSet,
    *,
    grouped: bool = False,
    reference: float | None = None,
    max_rows: int = MAX_ROWS,
) -> str:
    """Renders one bar per text, in result order.

    Args:
        grouped: whether the series have a bar each, in place of one stacked bar.
        reference: a value that a line marks in all rows.
    """
    xs = data.positions[:max_rows]
    totals = {x: sum(max(value, 0.0) for value in _values_at(data, x)) for x in xs}
    highest = max((value for x in xs for value in _values_at(data, x)) if grouped else totals.values(), default=0.0)
    scale = Scale(0.0, max(highest, reference or 0.0) or 1.0, _LABEL_WIDTH, options.width - _VALUE_WIDTH)
    row_height = _ROW_HEIGHT + _BAR_HEIGHT * (len(data.series) - 1) * grouped
    parts: list[str] = []
    for row, x in enumerate(xs):
        top = row * row_height
        parts += _row_bars(options, data, x, top + (_ROW_HEIGHT - _BAR_HEIGHT) / 2, scale, grouped=grouped)
        if not grouped:
            parts.append(_bar_label(options, scale(totals[x]), top + row_height / 2, totals[x]))
        parts += _row_texts(options, data, x, top, row_height)
    rows_height = max(len(xs), 1) * row_height
    height = rows_height + _TITLE_HEIGHT * bool(options.y_title or reference is not None)
    if options.y_title:
        parts.append(f'<text class="axis" x="{_LABEL_WIDTH}" y="{height - 5}">{escape(options.y_title)}</text>')
    if reference is not None:
        at, label = scale(reference), format_short(reference, options.unit)
        parts.append(f'<line class="note" x1="{at}" x2="{at}" y1="0" y2="{rows_height}"/>')
        parts.append(f'<text class="tick" x="{at}" y="{height - 5}" text-anchor="middle">{escape(label)}</text>')
    return svg(options, height, parts)


def _row_texts(options: ChartOptions, data: SeriesSet, x: float, top: float, height: float) -> Iterator[str]:
    """Yields the label of a row, and a strip that shows its values on hover."""
    label = data.labels[x]
    shown = label if len(label) <= _LABEL_CHARACTERS else f"{label[: _LABEL_CHARACTERS - 1]}…"
    yield (
        f'<text class="row" x="{_LABEL_WIDTH - 8}" y="{top + height / 2 + 4}" text-anchor="end">{escape(shown)}</text>'
    )
    values = ((item, format_full(max(item.values.get(x) or 0.0, 0.0), options.unit)) for item in data.series)
    texts = "; ".join(data.hover_text(item, value) for item, value in values)
    yield (
        f'<rect class="strip" x="0" y="{top}" width="{options.width}" height="{height}">'
        f"<title>{escape(label)}: {escape(texts)}</title></rect>"
    )


def _row_bars(
    options: ChartOptions, data: SeriesSet, x: float, top: float, scale: Scale, *, grouped: bool
) -> Iterator[str]:
    """Yields the bars of one row: one below the other if grouped, otherwise one after the other."""
    start = 0.0
    for number, item in enumerate(data.series):
        value = max(item.values.get(x) or 0.0, 0.0)
        left, right = scale(start), scale(start + value)
        yield _rect(f"fill s{number}", left, top, right - left, _BAR_HEIGHT - 2 * grouped)
        if grouped:
            yield _bar_label(options, right, top + _BAR_HEIGHT / 2 - 1, value)
            top += _BAR_HEIGHT
        else:
            start += value


def _bar_label(options: ChartOptions, end: float, middle: float, value: float) -> str:
    return f'<text class="tick" x="{end + 6}" y="{middle + 4}">{escape(format_short(value, options.unit))}</text>'


def histogram(options: ChartOptions, x: Sequence[Any], counts: Sequence[Any] | None = None, *, name: str) -> str:
    """Renders a histogram of up to 30 equal bins. With counts, x are bin starts. `name` is the name of x.

    Raises:
        ValueError: there is no value.
        TypeError: a value is not a number.
    """
    numbers = [to_number(value) for value in x]
    if counts is not None:
        summed: defaultdict[float, float] = defaultdict(float)
        for number, count in zip(numbers, counts, strict=True):
            if number is not None:
                summed[number] += to_number(count) or 0.0
        bins: dict[float, float] = dict(summed)
        step = _smallest_gap(sorted(summed))
    else:
        bins, step = bin_values([number for number in numbers if number is not None])
    if not bins:
        raise ValueError(f"{name} has no values")
    low, high = min(bins), max(bins) + step
    steps = number_steps(0.0, max(bins.values()), max_steps=6)
    frame = Frame.for_ranges((low, high), (0.0, steps[-1]), options)
    drawn, hover_areas = [], []
    shown = sampled_positions(sorted(bins))
    for start, count in sorted(bins.items()):
        left, right = frame.x(start), frame.x(start + step)
        drawn.append(
            _rect("fill s0", left + 0.5, frame.y(count), max(right - left - 1, 0.6), frame.y(0) - frame.y(count))
        )
        head = f"{format_full(start, options.unit)} to {format_full(start + step, options.unit)}"
        if start in shown:
            hover_areas.append(
                frame.hover(left, right, round((left + right) / 2, 1), [("s0", format_full(count, None))], head=head)
            )
    across = [
        tick for tick in number_ticks(number_steps(low, high, max_steps=8), options.unit) if low <= tick.value <= high
    ]
    return frame.svg([frame.axes(across, number_ticks(steps, None)), *drawn, *hover_areas])


def bin_values(values: Sequence[float]) -> tuple[dict[float, float], float]:
    """Counts values in bins of a round width; returns counts by bin start, and the width."""
    if not values:
        return {}, 1.0
    low, high = min(values), max(values)
    step = nice_step((high - low) / (_MAX_BINS - 1)) if high > low else 1.0
    counts = Counter(math.floor(value / step + 1e-9) for value in values)
    first, last = min(counts), max(counts)
    return {round(number * step, 12): float(counts[number]) for number in range(first, last + 1)}, step


def _smallest_gap(ordered: Sequence[float]) -> float:
    return min((after - before for before, after in pairwise(ordered)), default=1.0)


def _values_at(data: SeriesSet, x: float) -> Iterator[float]:
    return (item.values.get(x) or 0.0 for item in data.series)


def _rect(name: str, x: float, y: float, width: float, height: float) -> str:
    if height <= 0 or width <= 0:
        return ""
    sizes: dict[str, Any] = {"x": x, "y": y, "width": width, "height": height}
    return f'<rect class="{name}" ' + " ".join(f'{key}="{round(value, 1)}"' for key, value in sizes.items()) + "/>"
