"""A dashboard as people see it: the answers of its panels, with what happened meanwhile marked on its charts.

Notes and the episodes of rules are of `judging`, which dashboards know nothing of; here both come together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.dashboards.answers import DashboardAnswer, answer_dashboard
from deltaworks.dashboards.marks import MAX_MARKS, Mark, Marks
from deltaworks.dashboards.spans import Span
from deltaworks.rules.annotations import annotations_between
from deltaworks.rules.minutes import minute_start, parse_minute
from deltaworks.rules.stored_state import EpisodeRecord, RuleState, rule_states
from deltaworks.specs.catalog import Catalog

if TYPE_CHECKING:
    from deltaworks.specs.dashboards import DashboardSpec

_MAX_LABEL_SETS = 3


def load_dashboard(catalog: Catalog, pipeline: str, dashboard: DashboardSpec, span: Span) -> DashboardAnswer:
    """Ask what the panels ask, and read what happened between the times of the span. Safe beside anything."""
    marks = marks_between(open_objects(catalog.environment.lake), pipeline, span)
    return answer_dashboard(catalog, pipeline, dashboard, span, marks=marks)


def marks_between(objects: ObjectStore, pipeline: str, span: Span) -> Marks:
    """The notes of a pipeline and the episodes of its rules that touch a span.

    Where they cannot be read the answer says so: figures are to be seen all the same.
    """
    try:
        # One more than is drawn, so that the page says that there are more.
        notes = annotations_between(objects, pipeline, since=span.since, until=span.until, max_count=MAX_MARKS + 1)
        marks = [
            Mark(kind="note", at=note.at, text=note.text + (f" ({note.author})" if note.author else ""))
            for note in notes
        ]
        for state in rule_states(objects, pipeline):
            marks += _episode_marks(state)
        return Marks.overlapping(marks, span)
    except Exception as error:
        return Marks(problem=f"{type(error).__name__}: {error}")


def _episode_marks(state: RuleState) -> Iterator[Mark]:
    """A rule's episodes; those of several label sets that overlap are one, as its alert in a storm is."""
    ordered = sorted(state.episodes, key=lambda episode: parse_minute(episode.began))
    overlapping: list[EpisodeRecord] = []
    end = -1.0
    for episode in ordered:
        if overlapping and parse_minute(episode.began) > end:
            yield _episode_mark(state, overlapping)
            overlapping, end = [], -1.0
        overlapping.append(episode)
        end = max(end, _end_minute(episode))
    if overlapping:
        yield _episode_mark(state, overlapping)


def _episode_mark(state: RuleState, episodes: Sequence[EpisodeRecord]) -> Mark:
    ends = [_end_minute(episode) for episode in episodes]
    names = list(dict.fromkeys(_describe_labels(state, episode) for episode in episodes))
    more = f" and {len(names) - _MAX_LABEL_SETS} more" if len(names) > _MAX_LABEL_SETS else ""
    label_sets = "; ".join(names[:_MAX_LABEL_SETS]) + more
    return Mark(
        kind="rule",
        at=minute_start(min(parse_minute(episode.began) for episode in episodes)),
        until=None if float("inf") in ends else minute_start(int(max(ends))),
        text=f"{state.rule} fired" + (f": {label_sets}" if label_sets else ""),
    )


def _describe_labels(state: RuleState, episode: EpisodeRecord) -> str:
    """A label set in words. Its names are those it was judged by; a rule may be declared otherwise by now."""
    pairs = zip(state.labels, episode.labels, strict=False)
    return ", ".join(f"{name} {'unknown' if value is None else value}" for name, value in pairs)


def _end_minute(episode: EpisodeRecord) -> float:
    return float("inf") if episode.ended is None else parse_minute(episode.ended)
