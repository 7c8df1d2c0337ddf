"""Renders bar charts as SVG: columns over time or numbers, rows of texts, and histograms."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from deltaworks.dashboards.answers import PanelAnswer
from deltaworks.dashboards.drawing import Frame, escape
from deltaworks.dashboards.lines import position_label, sampled_positions, x_ticks
from deltaworks.dashboards.marks import NO_MARKS, Marks, mark_bands, mark_labels
from deltaworks.dashboards.scales import Scale, Tick, nice_step, number_steps, number_ticks
from deltaworks.dashboards.series import Series, SeriesSet
from deltaworks.dashboards.values import format_full, format_short, to_number
from deltaworks.specs.dashboards import PanelSpec

#: Maximum rows of a text bar chart. More rows need a table panel.
MAX_ROWS = 12
_MAX_BINS = 30
_ROW_HEIGHT = 24
_LABEL_WIDTH, _VALUE_WIDTH = 164, 70
_LABEL_CHARACTERS = 21
#: Share of the available width that a column fills.
_COLUMN_FILL_SHARE = 0.86


def column_chart(panel: PanelSpec, data: SeriesSet, span: tuple[float, float], marks: Marks = NO_MARKS) -> str:
    """Renders columns. Several series are stacked."""
    step = data.step
    span = (min(span[0], data.positions[0]), max(span[1], data.positions[-1] + step))
    highest = max((sum(max(value, 0.0) for value in _values_at(data, x)) for x in data.positions), default=0.0)
    lowest = min((sum(min(value, 0.0) for value in _values_at(data, x)) for x in data.positions), default=0.0)
    steps = number_steps(min(lowest, 0.0), max(highest, 0.0), max_steps=6)
    frame = Frame.for_ranges(span, (steps[0], steps[-1]), wide=panel.wide)
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
            lines.append((f"s{number}", _hover_text(panel, item, value, is_single_series=len(data.series) == 1)))
        if x in shown:
            hover_areas.append(
                frame.hover(left, right, round((left + right) / 2, 1), lines, head=position_label(data, x))
            )
    # A date label is centred on its column.
    shift = step / 2 if data.is_dates else 0.0
    across = [
        Tick(tick.value + shift, tick.label) for tick in x_ticks(data, span, panel) if tick.value + shift <= span[1]
    ]
    axes = frame.axes(across, number_ticks(steps, panel.unit))
    return frame.svg(panel.title, [mark_bands(frame, marks), axes, *drawn, *hover_areas, mark_labels(frame, marks)])


def row_chart(panel: PanelSpec, data: SeriesSet) -> str:
    """Renders one bar per text, in result order."""
    width = 1_280 if panel.wide else 620
    xs = data.positions[:MAX_ROWS]
    totals = {x: sum(max(value, 0.0) for value in _values_at(data, x)) for x in xs}
    scale = Scale(0.0, max(totals.values(), default=0.0) or 1.0, _LABEL_WIDTH, width - _VALUE_WIDTH)
    parts: list[str] = []
    for row, x in enumerate(xs):
        middle = row * _ROW_HEIGHT + _ROW_HEIGHT / 2
        label = data.labels[x]
        shown = label if len(label) <= _LABEL_CHARACTERS else f"{label[: _LABEL_CHARACTERS - 1]}…"
        start, hover_texts = 0.0, []
        parts.append(
            f'<text class="row" x="{_LABEL_WIDTH - 8}" y="{middle + 4}" text-anchor="end">{escape(shown)}</text>'
        )
        for number, item in enumerate(data.series):
            value = max(item.values.get(x) or 0.0, 0.0)
            left, right = scale(start), scale(start + value)
            parts.append(_rect(f"fill s{number}", left, middle - 8, right - left, 16))
            hover_texts.append(_hover_text(panel, item, value, is_single_series=len(data.series) == 1))
            start += value
        parts.append(
            f'<text class="tick" x="{scale(start) + 6}" y="{middle + 4}">'
            f"{escape(format_short(totals[x], panel.unit))}</text>"
        )
        parts.append(
            f'<rect class="strip" x="0" y="{row * _ROW_HEIGHT}" width="{width}" height="{_ROW_HEIGHT}">'
            f"<title>{escape(label)}: {escape('; '.join(hover_texts))}</title></rect>"
        )
    height = max(len(xs), 1) * _ROW_HEIGHT
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(panel.title)}">{"".join(parts)}</svg>'


def histogram(answer: PanelAnswer) -> str:
    """Renders a histogram of up to 30 equal bins. If the panel has y, x are bin starts and y their counts."""
    panel = answer.panel
    numbers = [to_number(value) for value in answer.column(panel.x or "")]
    if panel.y:
        counts = [to_number(value) or 0.0 for value in answer.column(panel.y[0])]
        summed: defaultdict[float, float] = defaultdict(float)
        for number, count in zip(numbers, counts, strict=True):
            if number is not None:
                summed[number] += count
        bins: dict[float, float] = dict(summed)
        step = _smallest_gap(sorted(summed))
    else:
        bins, step = bin_values([number for number in numbers if number is not None])
    if not bins:
        raise ValueError(f"{panel.x} has no values")
    low, high = min(bins), max(bins) + step
    steps = number_steps(0.0, max(bins.values()), max_steps=6)
    frame = Frame.for_ranges((low, high), (0.0, steps[-1]), wide=panel.wide)
    drawn, hover_areas = [], []
    shown = sampled_positions(sorted(bins))
    for start, count in sorted(bins.items()):
        left, right = frame.x(start), frame.x(start + step)
        drawn.append(
            _rect("fill s0", left + 0.5, frame.y(count), max(right - left - 1, 0.6), frame.y(0) - frame.y(count))
        )
        head = f"{format_full(start, panel.unit)} to {format_full(start + step, panel.unit)}"
        if start in shown:
            hover_areas.append(
                frame.hover(left, right, round((left + right) / 2, 1), [("s0", format_full(count, None))], head=head)
            )
    across = [
        tick for tick in number_ticks(number_steps(low, high, max_steps=8), panel.unit) if low <= tick.value <= high
    ]
    return frame.svg(panel.title, [frame.axes(across, number_ticks(steps, None)), *drawn, *hover_areas])


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


def _hover_text(panel: PanelSpec, item: Series, value: float, *, is_single_series: bool) -> str:
    text = format_full(value, panel.unit)
    return text if is_single_series and panel.by is None else f"{item.name[:40]}  {text}"
