"""What happened while a chart's data came in: notes that people left, and times for which a rule fired.

A note is a line of a chart, a firing rule a band of it; each carries a number, under which the page says what it was.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from deltaworks.dashboards.drawing import Frame, escape
from deltaworks.dashboards.spans import Span
from deltaworks.dashboards.values import format_time

#: Of more, the newest are drawn: beyond it numbers stand one over the other.
MAX_MARKS = 30
_LABEL_WIDTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened: at one time, or from it to `until`; a rule that still fires has none."""

    kind: Literal["note", "rule"]
    at: dt.datetime
    text: str
    until: dt.datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The marks of a page, the oldest first. `earlier_count` says how many older ones there are; `problem` why none
    could be read."""

    items: tuple[Mark, ...] = ()
    earlier_count: int = 0
    problem: str = ""

    @classmethod
    def overlapping(cls, marks: Sequence[Mark], span: Span) -> Marks:
        """Those that touch a span."""
        ordered = sorted(marks, key=lambda mark: (mark.at, mark.kind, mark.text))
        within = [mark for mark in ordered if mark.at < span.until and _mark_end(mark) >= span.since]
        return cls(items=tuple(within[-MAX_MARKS:]), earlier_count=max(0, len(within) - MAX_MARKS))


#: Of a chart that is not over time, and of one of which nothing is known.
NO_MARKS = Marks()


def mark_bands(frame: Frame, marks: Marks) -> str:
    """What lies below the data: a band for as long as a rule fired, a line for a note."""
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
    """What lies above all: the number of each mark. One that would hide the number before it is left to the list."""
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
    """What the numbers stand for; nothing where nothing happened."""
    if marks.problem:
        return f'<p class="problem">What happened could not be read. {escape(marks.problem)}</p>'
    if not marks.items:
        return ""
    rows = "".join(f'<li class="{mark.kind}-mark">{escape(describe_mark(mark))}</li>' for mark in marks.items)
    older = f'<p class="note">and {marks.earlier_count:,} earlier ones</p>' if marks.earlier_count else ""
    return f'<section class="wide happened"><h2>What happened</h2><ol>{rows}</ol>{older}</section>'


def describe_mark(mark: Mark) -> str:
    """A mark in words, with its times."""
    if mark.kind == "note":
        return f"{_minute_text(mark.at)} {mark.text}"
    until = "now" if mark.until is None else _minute_text(mark.until)
    return f"{_minute_text(mark.at)} to {until} {mark.text}"


def _mark_edges(frame: Frame, mark: Mark) -> tuple[float, float]:
    """Where a mark begins and ends, in pixels of the chart."""
    low, high = frame.x.low, frame.x.high
    end = high if mark.until is None and mark.kind == "rule" else _mark_end(mark).timestamp()
    return frame.x(min(max(mark.at.timestamp(), low), high)), frame.x(min(max(end, low), high))


def _mark_end(mark: Mark) -> dt.datetime:
    if mark.kind == "note":
        return mark.at
    return dt.datetime.max.replace(tzinfo=dt.UTC) if mark.until is None else mark.until


def _minute_text(at: dt.datetime) -> str:
    return format_time(at.replace(second=0, microsecond=0))
