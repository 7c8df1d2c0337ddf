"""Loads a dashboard: the query results of its panels, with notes and rule episodes as marks on the charts.

Notes and rule episodes belong to the package `rules`. Package `dashboards` does not depend on it; this module combines
both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from deltaworks.charts.drawing import MAX_MARKS, Mark, Marks, Span
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.dashboards.answers import DashboardAnswer, answer_dashboard
from deltaworks.rules.annotations import annotations_between
from deltaworks.rules.evaluation import minute_start, parse_minute
from deltaworks.rules.stored_state import EpisodeRecord, RuleState, rule_states
from deltaworks.specs.catalog import Catalog

if TYPE_CHECKING:
    from deltaworks.specs.dashboards import DashboardSpec

_MAX_LABEL_SETS = 3


def load_dashboard(catalog: Catalog, pipeline: str, dashboard: DashboardSpec, span: Span) -> DashboardAnswer:
    """Runs the queries of the panels, and reads the notes and rule episodes within the time span. Read-only."""
    marks = marks_between(open_objects(catalog.environment.lake), pipeline, span)
    return answer_dashboard(catalog, pipeline, dashboard, span, marks=marks)


def marks_between(objects: ObjectStore, pipeline: str, span: Span) -> Marks:
    """Returns a pipeline's notes and rule episodes within a time span.

    If they cannot be read, the result has a problem text, and the panels are shown without them.
    """
    try:
        # Reads one more than is drawn, so that the page can say that there are more.
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
    """Yields a rule's episodes. Overlapping episodes of several label sets are merged, as in the grouped alert."""
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
    """Formats a label set with the names that the labels had when the rule was evaluated."""
    pairs = zip(state.labels, episode.labels, strict=False)
    return ", ".join(f"{name} {'unknown' if value is None else value}" for name, value in pairs)


def _end_minute(episode: EpisodeRecord) -> float:
    return float("inf") if episode.ended is None else parse_minute(episode.ended)
