"""The frame of an SVG chart: axes, grid, hover tooltips, and marks for annotations and firing rules.

Colours are CSS classes, so one drawing works in the light and the dark theme. No scripts.
"""

from __future__ import annotations

import datetime as dt
import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeVar

from deltaworks.charts.scales import Scale, Tick, format_time
from deltaworks.specs.dashboards import Unit

Point = tuple[float, float]
T = TypeVar("T")
#: Maximum number of marks drawn. Only the newest are drawn, since more numbers would overlap.
MAX_MARKS = 30
_HEIGHT = 230
_WIDTH = {False: 620, True: 1_280}
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 14, 24
#: Space that the title of an axis takes, in pixels.
_AXIS_TITLE_HEIGHT = 17
#: Width of a character in chart labels, in pixels.
_CHARACTER_WIDTH = 6.2
_LINE_HEIGHT = 16
_EDGE_MARGIN = 20
_MARK_LABEL_WIDTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartOptions:
    """The texts, the unit and the width of a chart. Axes have a title only if it is given."""

    title: str
    unit: Unit | None = None
    wide: bool = False
    x_title: str = ""
    y_title: str = ""

    @property
    def width(self) -> int:
        """The width of the drawing."""
        return _WIDTH[self.wide]

    @property
    def max_ticks(self) -> int:
        """The number of ticks that the x axis has room for."""
        return 16 if self.wide else 8


@dataclass(frozen=True, slots=True)
class Frame:
    """The drawing area of a chart: its texts and axis scales."""

    options: ChartOptions
    x: Scale
    y: Scale

    @classmethod
    def for_ranges(
        cls, x: tuple[float, float], y: tuple[float, float], options: ChartOptions, *, is_log: bool = False
    ) -> Frame:
        """Returns a frame whose scales cover these value ranges."""
        start = _LEFT + _AXIS_TITLE_HEIGHT * bool(options.y_title)
        return cls(
            options,
            Scale(*x, start, options.width - _RIGHT),
            Scale(*y, _HEIGHT - _BOTTOM, _TOP, is_log=is_log),
        )

    @property
    def width(self) -> int:
        """The width of the drawing."""
        return self.options.width

    @property
    def top(self) -> int:
        """The upper edge of the drawing area."""
        return _TOP

    @property
    def bottom(self) -> int:
        """The lower edge of the drawing area."""
        return _HEIGHT - _BOTTOM

    @property
    def height(self) -> int:
        """The height of the drawing area."""
        return self.bottom - self.top

    def axes(self, x: Sequence[Tick], y: Sequence[Tick]) -> str:
        """Renders the grid, and the labels and titles of both axes."""
        start, end = self.x.start, self.x.end
        parts = [
            f'<line class="grid" x1="{start}" x2="{end}" y1="{at}" y2="{at}"/>'
            f'<text class="tick" x="{start - 6}" y="{at + 4}" text-anchor="end">{escape(tick.label)}</text>'
            for tick in y
            for at in [self.y(tick.value)]
        ]
        for tick in x:
            at = self.x(tick.value)
            half = len(tick.label) * _CHARACTER_WIDTH / 2
            # Labels are moved so that they stay inside the picture.
            middle = round(min(max(at, half), self.width - half), 1)
            parts.append(
                f'<line class="mark" x1="{at}" x2="{at}" y1="{self.bottom}" y2="{self.bottom + 4}"/>'
                f'<text class="tick" x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(tick.label)}</text>'
            )
        base = self.y(0) if self.y.low <= 0 <= self.y.high else self.bottom
        parts.append(f'<line class="base" x1="{start}" x2="{end}" y1="{base}" y2="{base}"/>')
        return "".join([*parts, *self._axis_titles()])

    def _axis_titles(self) -> Iterator[str]:
        if self.options.x_title:
            middle = round((self.x.start + self.x.end) / 2, 1)
            yield (
                f'<text class="axis" x="{middle}" y="{_HEIGHT + _AXIS_TITLE_HEIGHT - 6}" text-anchor="middle">'
                f"{escape(self.options.x_title)}</text>"
            )
        if self.options.y_title:
            yield (
                f'<text class="axis" transform="translate(11 {round((self.top + self.bottom) / 2)}) rotate(-90)" '
                f'text-anchor="middle">{escape(self.options.y_title)}</text>'
            )

    def hover(self, left: float, right: float, at: float, lines: Sequence[tuple[str, str]], *, head: str) -> str:
        """Renders an invisible strip that shows values while the pointer is over it.

        Args:
            at: the position of the marker line.
            lines: CSS class (may be empty) and text of each line.
        """
        texts = [head, *(text for _, text in lines)]
        width = round(max(map(len, texts)) * _CHARACTER_WIDTH + (30 if lines else 18), 1)
        x = at + 10 if at + 10 + width <= self.width else max(at - 10 - width, 0)
        rows = "".join(
            (
                f'<rect class="fill {name}" x="9" y="{_LINE_HEIGHT * number + 11}" width="9" height="9" rx="2"/>'
                if name
                else ""
            )
            + f'<text x="{24 if name else 9}" y="{_LINE_HEIGHT * number + 19}">{escape(text)}</text>'
            for number, (name, text) in enumerate(lines, start=1)
        )
        return (
            f'<g class="hit"><rect x="{left}" y="{_TOP}" width="{round(max(right - left, 1), 1)}" '
            f'height="{self.height}"/>'
            f'<g class="tip"><line x1="{at}" x2="{at}" y1="{_TOP}" y2="{self.bottom}"/>'
            f'<g transform="translate({round(x, 1)} {_TOP + 2})">'
            f'<rect class="box" width="{width}" height="{_LINE_HEIGHT * len(texts) + 12}" rx="6"/>'
            f'<text class="head" x="9" y="19">{escape(head)}</text>{rows}</g></g></g>'
        )

    def svg(self, parts: Iterable[str]) -> str:
        """Renders the complete SVG element."""
        return svg(self.options, _HEIGHT + _AXIS_TITLE_HEIGHT * bool(self.options.x_title), parts)


def svg(options: ChartOptions, height: int, parts: Iterable[str]) -> str:
    """Renders an SVG element of the chart's width."""
    return (
        f'<svg viewBox="0 0 {options.width} {height}" role="img" aria-label="{escape(options.title)}">'
        f"{''.join(parts)}</svg>"
    )


def hover_strips(pixels: Sequence[float], low: float, high: float) -> list[tuple[float, float]]:
    """Returns the range of the hover strip of each point: half way to its neighbours, limited at the ends."""
    low, high = max(low, pixels[0] - _EDGE_MARGIN), min(high, pixels[-1] + _EDGE_MARGIN)
    middles = [round((before + after) / 2, 1) for before, after in pairwise(pixels)]
    return list(zip([low, *middles], [*middles, high], strict=True))


def split_runs(points: Iterable[T | None]) -> list[list[T]]:
    """Splits points, or pairs of them, at gaps."""
    runs: list[list[T]] = [[]]
    for point in points:
        if point is None:
            runs.append([])
        else:
            runs[-1].append(point)
    return [run for run in runs if run]


def path_data(points: Sequence[Point]) -> str:
    """Returns a line as SVG path data."""
    return "M" + "L".join(f"{x} {y}" for x, y in points)


def line_elements(points: Iterable[Point | None], number: int) -> Iterator[str]:
    """Yields the SVG elements of the line of a series. A single point between gaps becomes a dot."""
    for run in split_runs(points):
        if len(run) == 1:
            yield f'<circle class="fill s{number}" cx="{run[0][0]}" cy="{run[0][1]}" r="3"/>'
        else:
            yield f'<path class="line s{number}" d="{path_data(run)}"/>'


def escape(value: object) -> str:
    """Escapes text for HTML."""
    return html.escape(str(value), quote=True)


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open time range of aware datetimes."""

    since: dt.datetime
    until: dt.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """An annotation, or a time range in which a rule fired (`until` is None while it fires)."""

    kind: Literal["note", "rule"]
    at: dt.datetime
    text: str
    until: dt.datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The marks of a page, oldest first.

    - `earlier_count`: number of older marks that are not drawn.
    - `problem`: why marks could not be read.
    """

    items: tuple[Mark, ...] = ()
    earlier_count: int = 0
    problem: str = ""

    @classmethod
    def overlapping(cls, marks: Sequence[Mark], span: Span) -> Marks:
        """Returns the marks that overlap a time span."""
        ordered = sorted(marks, key=lambda mark: (mark.at, mark.kind, mark.text))
        within = [mark for mark in ordered if mark.at < span.until and _mark_end(mark) >= span.since]
        return cls(items=tuple(within[-MAX_MARKS:]), earlier_count=max(0, len(within) - MAX_MARKS))


#: Charts without a time axis have no marks.
NO_MARKS = Marks()


def mark_bands(frame: Frame, marks: Marks) -> str:
    """Renders bands of firing rules and lines of annotations, behind the data."""
    parts = []
    for mark in marks.items:
        left, right = _mark_edges(frame, mark)
        if mark.kind == "rule":
            width = max(round(right - left, 1), 1.5)
            parts.append(f'<rect class="fired" x="{left}" y="{frame.top}" width="{width}" height="{frame.height}"/>')
        else:
            parts.append(f'<line class="note" x1="{left}" x2="{left}" y1="{frame.top}" y2="{frame.bottom}"/>')
    return "".join(parts)


def mark_labels(frame: Frame, marks: Marks) -> str:
    """Renders the numbers of marks in front of the data. Overlapping numbers are omitted."""
    parts, free_from = [], float("-inf")
    for number, mark in enumerate(marks.items, start=1):
        at = min(max(_mark_edges(frame, mark)[0], _MARK_LABEL_WIDTH / 2), frame.width - _MARK_LABEL_WIDTH / 2)
        if at - _MARK_LABEL_WIDTH / 2 < free_from:
            continue
        free_from = at + _MARK_LABEL_WIDTH / 2
        parts.append(
            f'<g class="flag {mark.kind}"><title>{escape(describe_mark(mark))}</title>'
            f'<rect x="{round(at - _MARK_LABEL_WIDTH / 2, 1)}" y="0" width="{_MARK_LABEL_WIDTH}" height="13" rx="3"/>'
            f'<text x="{round(at, 1)}" y="10" text-anchor="middle">{number}</text></g>'
        )
    return "".join(parts)


def marks_list(marks: Marks) -> str:
    """Renders the list of marks. Returns an empty text without marks."""
    if marks.problem:
        return f'<p class="problem">Annotations and rules could not be read. {escape(marks.problem)}</p>'
    if not marks.items:
        return ""
    rows = "".join(f'<li class="{mark.kind}-mark">{escape(describe_mark(mark))}</li>' for mark in marks.items)
    older = f'<p class="note">and {marks.earlier_count:,} earlier</p>' if marks.earlier_count else ""
    return f'<section class="wide happened"><h2>Annotations and firing rules</h2><ol>{rows}</ol>{older}</section>'


def describe_mark(mark: Mark) -> str:
    """Describes a mark with its times."""
    if mark.kind == "note":
        return f"{_minute_text(mark.at)} {mark.text}"
    until = "now" if mark.until is None else _minute_text(mark.until)
    return f"{_minute_text(mark.at)} to {until} {mark.text}"


def _mark_edges(frame: Frame, mark: Mark) -> tuple[float, float]:
    """Returns the horizontal start and end of a mark in pixels."""
    low, high = frame.x.low, frame.x.high
    end = high if mark.until is None and mark.kind == "rule" else _mark_end(mark).timestamp()
    return frame.x(min(max(mark.at.timestamp(), low), high)), frame.x(min(max(end, low), high))


def _mark_end(mark: Mark) -> dt.datetime:
    if mark.kind == "note":
        return mark.at
    return dt.datetime.max.replace(tzinfo=dt.UTC) if mark.until is None else mark.until


def _minute_text(at: dt.datetime) -> str:
    return format_time(at.replace(second=0, microsecond=0))
