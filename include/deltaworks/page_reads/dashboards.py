"""Loads a dashboard: the results of its panels, rules with their baselines, and notes and rule episodes as marks.

Notes and rule episodes belong to the package `rules`. Package `dashboards` does not depend on it; this module combines
both.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from deltaworks.charts.drawing import MAX_MARKS, Mark, Marks, Span
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.dashboards.answers import DashboardAnswer, PanelAnswer, QueryLimits, answer_dashboard, unqueried_answer
from deltaworks.rules.annotations import annotations_between
from deltaworks.rules.backtest import ChartPoint, backtest, extreme_values
from deltaworks.rules.evaluation import minute_start, parse_minute
from deltaworks.rules.inputs import source_tables
from deltaworks.rules.messages import bounds_text, labels_text
from deltaworks.rules.stored_state import EpisodeRecord, RuleState, rule_states
from deltaworks.rules.verdicts import Baseline, bound_value
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.ages import table_age
from deltaworks.tables.lake import Lake
from deltaworks.tables.query import table_keys

if TYPE_CHECKING:
    from deltaworks.specs.alert_rule import RuleSpec
    from deltaworks.specs.dashboards import DashboardSpec, PanelSpec

_MAX_LABEL_SETS = 3
#: A panel of a rule draws this many of its steps, the newest, and this many label sets.
_MAX_STEPS, _MAX_SERIES = 3_000, 4


def load_dashboard(
    catalog: Catalog,
    pipeline: str,
    dashboard: DashboardSpec,
    span: Span,
    *,
    filters: Mapping[str, str] | None = None,
    limits: QueryLimits | None = None,
) -> DashboardAnswer:
    """Runs the queries of the panels, and reads the notes and rule episodes within the time span. Read-only.

    Args:
        filters: values by declared filter.
    """
    stored = stored_marks(open_objects(catalog.environment.lake), pipeline, span)

    def answer_rule(panel: PanelSpec, seconds: float) -> PanelAnswer:
        rule = next(item for item in catalog.pipeline(pipeline).rules if item.name == panel.rule)
        answered = _answer_rule(catalog, pipeline, rule, panel, span, seconds=seconds)
        return dataclasses.replace(answered, marks=stored.within(span, rule=rule.name))

    return answer_dashboard(
        catalog,
        pipeline,
        dashboard,
        span,
        limits=limits or QueryLimits(),
        marks=stored.within(span),
        filters=filters,
        answer_rule=answer_rule,
    )


def _answer_rule(
    catalog: Catalog, pipeline: str, rule: RuleSpec, panel: PanelSpec, span: Span, *, seconds: float
) -> PanelAnswer:
    """Returns the values of a rule in a time span, a line per label set, each with the band in which it does not fire.

    The band is between the baseline and the firing bound, without a baseline between zero and the bound. Values are
    read as in a backtest, so they include rows that arrived after the rule was evaluated.

    Args:
        seconds: timeout of its queries, of which there is one per day.

    Raises:
        ContractError: RULE_BROKEN, also if the queries take longer.
    """
    spec, lake = catalog.pipeline(pipeline), Lake(catalog.environment.lake)
    keys = table_keys(spec)
    ages = {name: table_age(lake, keys[name], name) for name in source_tables(spec, rule.reads)}
    answered = unqueried_answer(spec, panel, ages)
    if answered.missing_tables:
        return answered
    since = max(span.since, span.until - dt.timedelta(minutes=_MAX_STEPS * rule.step_minutes))
    days = (span.until.date() - since.date()).days + 1
    points = backtest(catalog, pipeline, rule, since=since, until=span.until, query_seconds=seconds / days).points
    extreme, factor = extreme_values(points, rule), 100.0 if panel.unit == "percent" else 1.0
    drawn = set(sorted(extreme, key=lambda labels: extreme[labels], reverse=True)[:_MAX_SERIES])
    rows = [
        (
            minute_start(point.minute),
            labels_text(rule, point.labels),
            *(None if value is None else factor * value for value in (point.value, *_band(rule, point))),
        )
        for point in points
        if point.labels in drawn
    ]
    columns = ("minute", "labels", "value", "low", "high")
    description = (
        panel.description or f"Fires when {bounds_text(rule.fire)}; the band reaches from there to the baseline."
    )
    if points and not rows:
        description += f" Every value in this time range has fewer than {rule.min_samples:g} samples."
    shown = panel.model_copy(
        update={"x": "minute", "y": ("value",), "by": "labels", "band": ("low", "high"), "description": description}
    )
    return dataclasses.replace(answered, panel=shown, columns=columns, rows=tuple(rows))


def _band(rule: RuleSpec, point: ChartPoint) -> tuple[float | None, float | None]:
    """Returns the edges of a point's band; None for both if there is none."""
    baseline = None if point.baseline is None else Baseline(point.baseline, point.spread)
    bound = bound_value(rule.fire, baseline)
    usual = point.baseline if point.baseline is not None else 0.0 if rule.fire.is_upper else None
    if bound is None or usual is None:
        return None, None
    return min(bound, usual), max(bound, usual)


@dataclass(frozen=True, slots=True)
class StoredMarks:
    """A pipeline's notes, and the episodes of its rules, by rule; or why they could not be read."""

    notes: tuple[Mark, ...] = ()
    episodes: Mapping[str, tuple[Mark, ...]] = field(default_factory=dict)
    problem: str = ""

    def within(self, span: Span, *, rule: str | None = None) -> Marks:
        """Returns the notes and rule episodes within a time span, of one rule if it is given."""
        if self.problem:
            return Marks(problem=self.problem)
        episodes = (marks for name, marks in self.episodes.items() if rule in (None, name))
        return Marks.overlapping([*self.notes, *chain.from_iterable(episodes)], span)


def stored_marks(objects: ObjectStore, pipeline: str, span: Span) -> StoredMarks:
    """Reads a pipeline's notes within a time span, and all rule episodes.

    If they cannot be read, the result has a problem text, and the panels are shown without them.
    """
    try:
        # Reads one more than is drawn, so that the page can say that there are more.
        notes = annotations_between(objects, pipeline, since=span.since, until=span.until, max_count=MAX_MARKS + 1)
        return StoredMarks(
            notes=tuple(
                Mark(kind="note", at=note.at, text=note.text + (f" ({note.author})" if note.author else ""))
                for note in notes
            ),
            episodes={state.rule: tuple(_episode_marks(state)) for state in rule_states(objects, pipeline)},
        )
    except Exception as error:
        return StoredMarks(problem=f"{type(error).__name__}: {error}")


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
