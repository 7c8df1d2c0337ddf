"""The stored state of a rule: one object with conditional writes, so only one of two concurrent evaluations succeeds.

Alert events are part of the same write (`outbox`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, Self, cast

from pydantic import Field

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordPart
from deltaworks.errors import DeltaworksError, Severity
from deltaworks.rules.evaluation import Episode, RuleEvaluation, Series, minute_text, parse_minute
from deltaworks.rules.open_alerts import OpenAlert
from deltaworks.rules.subjects import Labels
from deltaworks.rules.verdicts import Baseline, Observation, Phase, SeriesState
from deltaworks.specs.alert_rule import RuleSpec

#: Maximum number of ended episodes to keep. Baselines exclude their minutes.
MAX_EPISODES = 500


class SeriesRecord(RecordPart):
    """The stored state of one label set. Minutes are written as their start times."""

    labels: tuple[str | None, ...]
    phase: Phase
    steps: int = 0
    began: str | None = None
    fired: str | None = None
    unknown: bool = False
    last_row_minute: str = ""
    changed_minute: str = ""
    value: float | None = None
    samples: float | None = None
    baseline: float | None = None
    spread: float | None = None


class EpisodeRecord(RecordPart):
    """A stored episode. It is open if `ended` is not set."""

    labels: tuple[str | None, ...]
    began: str
    fired: str
    ended: str | None = None
    worst: float | None = None
    inhibited_by: str = ""


class AlertRecord(RecordPart):
    """An open alert with the label sets it covers."""

    subject: str
    episode: str
    labels: dict[str, str | None]
    members: tuple[tuple[str | None, ...], ...]
    is_storm: bool = False


class AlertEvent(RecordPart):
    """An event in the outbox that raises or resolves an alert."""

    kind: Literal["raise", "resolve"]
    cause: str
    subject: str
    severity: Severity | None
    summary: str
    detail: dict[str, Any]


class RuleState(Record):
    """The stored evaluation state of a rule.

    - `rule_alerts`: open alerts about the rule itself, with their start.
      The last text of each is in `rule_alert_texts`.
    - `data_until`, `problem`: the newest data seen, and why the rule cannot be evaluated.
    - `was_live`: whether its inputs ever had rows that were recent enough. Until then, it notifies of nothing.
    - `waiting`: whether it waits for such rows.
    """

    kind: ClassVar[RecordKind] = RecordKind(
        noun="state of a rule",
        unreadable_condition="RULE_STATE_UNREADABLE",
        hint="Delete it; the rule then starts from the current minute, without its past episodes.",
    )

    pipeline: str
    rule: str
    labels: tuple[str, ...] = ()
    last_minute: str | None = None
    series: tuple[SeriesRecord, ...] = ()
    episodes: tuple[EpisodeRecord, ...] = ()
    alerts: tuple[AlertRecord, ...] = ()
    rule_alerts: dict[str, str] = Field(default_factory=dict)
    outbox: tuple[AlertEvent, ...] = ()
    rule_alert_texts: dict[str, str] = Field(default_factory=dict)
    data_until: str = ""
    problem: str = ""
    was_live: bool = False
    waiting: bool = False

    def evaluation(self, rule: RuleSpec) -> RuleEvaluation:
        """Returns the evaluation that continues from this state."""
        evaluation = RuleEvaluation(rule, parse_minute(self.last_minute) if self.last_minute is not None else None)
        for series in self.series:
            evaluation.series[series.labels] = _series_from_record(series)
        for episode in self.episodes:
            if episode.ended is None:
                evaluation.firing[episode.labels] = episode_from_record(episode)
        return evaluation

    def open_alerts(self) -> dict[str, OpenAlert]:
        """Returns the open alerts by subject."""
        return {
            item.subject: OpenAlert(item.subject, item.episode, item.labels, frozenset(item.members), item.is_storm)
            for item in self.alerts
        }

    def with_evaluation(
        self, evaluation: RuleEvaluation, ended: Sequence[Episode], alerts: Sequence[OpenAlert]
    ) -> Self:
        """Returns the state after an evaluation that ended these episodes."""
        before = [episode for episode in self.episodes if episode.ended is not None]
        ended_records = [*before, *map(_episode_record, ended)][-MAX_EPISODES:]
        return self.replace(
            last_minute=None if evaluation.last_minute is None else minute_text(evaluation.last_minute),
            series=tuple(_series_record(labels, figure) for labels, figure in evaluation.series.items()),
            episodes=(*ended_records, *map(_episode_record, evaluation.firing.values())),
            alerts=tuple(_alert_record(alert) for alert in alerts),
        )


def rule_states(objects: ObjectStore, pipeline: str) -> Iterator[RuleState]:
    """Yields the stored states of a pipeline's rules; unreadable ones are skipped."""
    for key in objects.list(paths.rule_state(pipeline)):
        item = objects.get(key)
        if item is None:
            continue
        try:
            yield RuleState.decode(item.data, key=key)
        except DeltaworksError:
            continue


def read_rule_state(objects: ObjectStore, pipeline: str, rule: str) -> RuleState | None:
    """Returns the state of one rule; None if it has not been evaluated.

    Raises:
        ContractError: RULE_STATE_UNREADABLE.
    """
    key = paths.rule_state(pipeline, rule)
    item = objects.get(key)
    return None if item is None else RuleState.decode(item.data, key=key)


def episode_from_record(record: EpisodeRecord) -> Episode:
    """Converts the stored record of an episode to an `Episode`."""
    ended = None if record.ended is None else parse_minute(record.ended)
    return Episode(
        record.labels, parse_minute(record.began), parse_minute(record.fired), ended, record.worst, record.inhibited_by
    )


def _series_from_record(record: SeriesRecord) -> Series:
    began, fired = (None if text is None else parse_minute(text) for text in (record.began, record.fired))
    state = SeriesState(record.phase, record.steps, began, fired, record.unknown)
    last = Observation(record.labels, record.value, record.samples) if record.last_row_minute else None
    baseline = None if record.baseline is None else Baseline(record.baseline, record.spread or 0.0)
    last_row_minute, changed_minute = (
        parse_minute(text) if text else 0 for text in (record.last_row_minute, record.changed_minute)
    )
    return Series(state, last_row_minute, changed_minute, last, baseline)


def _series_record(labels: Labels, series: Series) -> SeriesRecord:
    state, last, baseline = series.state, series.last_row, series.baseline
    # Not validated, since there may be a hundred thousand per minute, all built from validated series.
    return SeriesRecord.model_construct(
        labels=labels,
        phase=state.phase,
        steps=state.consecutive_minutes,
        began=_minute_text_or_none(state.began),
        fired=_minute_text_or_none(state.fired),
        unknown=state.unknown,
        last_row_minute=_minute_text_or_none(series.last_row_minute) or "",
        changed_minute=_minute_text_or_none(series.changed_minute) or "",
        value=None if last is None else last.value,
        samples=None if last is None else last.samples,
        baseline=None if baseline is None else baseline.value,
        spread=None if baseline is None else baseline.spread,
    )


def _episode_record(episode: Episode) -> EpisodeRecord:
    return EpisodeRecord(
        labels=episode.labels,
        began=minute_text(episode.began),
        fired=minute_text(episode.fired),
        ended=_minute_text_or_none(episode.ended),
        worst=episode.worst,
        inhibited_by=episode.inhibited_by,
    )


def _alert_record(alert: OpenAlert) -> AlertRecord:
    members = tuple(sorted(alert.members, key=lambda labels: [value or "" for value in labels]))
    return AlertRecord(
        subject=alert.subject,
        episode=alert.episode,
        labels=cast(dict[str, str | None], dict(alert.labels)),
        members=members,
        is_storm=alert.is_storm,
    )


def _minute_text_or_none(minute: int | None) -> str | None:
    return minute_text(minute) if minute else None
