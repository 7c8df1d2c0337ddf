"""Marks on charts: annotations and firing rules.

An annotation is drawn as a vertical line, a firing rule as a band. Numbers refer to the list below the charts.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from deltaworks.dashboards.drawing import Frame, escape
from deltaworks.dashboards.spans import Span
from deltaworks.dashboards.values import format_time

#: Maximum number of marks drawn. Only the newest are drawn, since more numbers would overlap.
MAX_MARKS = 30
_LABEL_WIDTH = 16


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
        at = min(max(_mark_edges(frame, mark)[0], _LABEL_WIDTH / 2), frame.width - _LABEL_WIDTH / 2)
        if at - _LABEL_WIDTH / 2 < free_from:
            continue
        free_from = at + _LABEL_WIDTH / 2
        parts.append(
            f'<g class="flag {mark.kind}"><title>{escape(describe_mark(mark))}</title>'
            f'<rect x="{round(at - _LABEL_WIDTH / 2, 1)}" y="0" width="{_LABEL_WIDTH}" height="13" rx="3"/>'
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
