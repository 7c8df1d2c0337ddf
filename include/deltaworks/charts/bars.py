"""Renders bar charts as SVG: columns over time or numbers, rows of texts, and histograms."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from deltaworks.charts.drawing import NO_MARKS, ChartOptions, Frame, Marks, escape, mark_bands, mark_labels, svg
from deltaworks.charts.lines import sampled_positions
from deltaworks.charts.scales import (
    Scale,
    Tick,
    format_full,
    format_short,
    nice_step,
    number_steps,
    number_ticks,
    to_number,
)
from deltaworks.charts.series import SeriesSet

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
