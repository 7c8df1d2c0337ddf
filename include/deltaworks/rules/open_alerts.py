"""Decides which alerts to raise and resolve.

There is one alert per label set, a single one for a storm of label sets, and none while another rule inhibits it. Pure:
the same episodes give the same alerts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from deltaworks.rules.evaluation import Episode, RuleEvaluation, minute_text, parse_minute
from deltaworks.rules.subjects import Labels, subject_of
from deltaworks.specs.alert_rule import RuleSpec

#: Returns the firing rule that inhibits a label set in a minute, or None.
InhibitedBy = Callable[[Labels, int], str | None]


def never_inhibited(_labels: Labels, _minute: int) -> str | None:
    """Returns None: a look-up for rules without `inhibited_by`."""
    return None


@dataclass(frozen=True, slots=True)
class OpenAlert:
    """An open alert. `labels` identify its subject, `members` are the label sets that it covers."""

    subject: str
    episode: str
    labels: Mapping[str, str | None]
    members: frozenset[Labels]
    is_storm: bool = False


@dataclass(frozen=True, slots=True)
class AlertDecision:
    """A decision to raise or resolve an alert in a minute."""

    kind: Literal["raise", "resolve"]
    minute: int
    alert: OpenAlert


@dataclass(slots=True)
class OpenAlerts:
    """The open alerts of one rule, by subject."""

    pipeline: str
    rule: RuleSpec
    by_subject: dict[str, OpenAlert] = field(default_factory=dict)

    def update(
        self,
        evaluation: RuleEvaluation,
        minute: int,
        inhibited_by: InhibitedBy = never_inhibited,
        *,
        may_raise: bool = True,
    ) -> list[AlertDecision]:
        """Returns the decisions after an evaluated minute. Marks inhibited episodes.

        Args:
            may_raise: whether episodes are reported. One that still fires is reported by a later minute that may.
        """
        decisions = self._resolve_ended(evaluation, minute)
        if not may_raise:
            return decisions
        unreported = self._unreported_episodes(evaluation, minute, inhibited_by)
        for by, episodes in self._group_by_storm_labels(unreported).items():
            decisions += self._raise_alerts(evaluation, minute, by, episodes)
        return decisions

    def renewals(self, minute: int) -> list[tuple[AlertDecision, int]]:
        """Returns decisions that raise every open alert again, which renews its text, each with the minute in which
        the alert was raised.
        """
        return [
            (AlertDecision("raise", minute, alert), parse_minute(alert.episode.rpartition("@")[2]))
            for alert in self.by_subject.values()
        ]

    def resolve_all(self, minute: int) -> list[AlertDecision]:
        """Returns decisions that resolve every open alert of a removed or changed rule."""
        decisions = [AlertDecision("resolve", minute, alert) for alert in self.by_subject.values()]
        self.by_subject.clear()
        return decisions

    def _resolve_ended(self, evaluation: RuleEvaluation, minute: int) -> list[AlertDecision]:
        decisions = []
        for subject, alert in list(self.by_subject.items()):
            still_firing = frozenset(labels for labels in alert.members if labels in evaluation.firing)
            if not still_firing:
                decisions.append(AlertDecision("resolve", minute, alert))
                del self.by_subject[subject]
            elif still_firing != alert.members:
                self.by_subject[subject] = replace(alert, members=still_firing)
        return decisions

    def _unreported_episodes(self, evaluation: RuleEvaluation, minute: int, inhibited_by: InhibitedBy) -> list[Episode]:
        covered = {labels for alert in self.by_subject.values() for labels in alert.members}
        unreported = []
        for labels, episode in evaluation.firing.items():
            if labels in covered:
                continue
            inhibitor = inhibited_by(labels, minute)
            if inhibitor is None:
                unreported.append(episode)
            elif not episode.inhibited_by:
                evaluation.firing[labels] = replace(episode, inhibited_by=inhibitor)
        return unreported

    def _group_by_storm_labels(self, episodes: list[Episode]) -> dict[Labels, list[Episode]]:
        positions = self._storm_label_positions()
        groups: dict[Labels, list[Episode]] = {}
        for episode in episodes:
            groups.setdefault(tuple(episode.labels[position] for position in positions), []).append(episode)
        return groups

    def _raise_alerts(
        self, evaluation: RuleEvaluation, minute: int, storm_labels: Labels, episodes: list[Episode]
    ) -> list[AlertDecision]:
        subject = subject_of(self.pipeline, self.rule.name, self.rule.grouping.by, storm_labels)
        storm = self.by_subject.get(subject)
        new_members = frozenset(episode.labels for episode in episodes)
        if storm is not None and storm.is_storm:
            self.by_subject[subject] = replace(storm, members=storm.members | new_members)
            return []
        positions = self._storm_label_positions()
        firing_count = sum(
            tuple(labels[position] for position in positions) == storm_labels for labels in evaluation.firing
        )
        if firing_count >= self.rule.grouping.min_alerts:
            names = dict(zip(self.rule.grouping.by, storm_labels, strict=True))
            return [
                self._raise_alert(OpenAlert(subject, _episode_id(subject, minute), names, new_members, True), minute)
            ]
        decisions = []
        for episode in episodes:
            label_subject = subject_of(self.pipeline, self.rule.name, self.rule.labels, episode.labels)
            names = dict(zip(self.rule.labels, episode.labels, strict=True))
            alert = OpenAlert(
                label_subject, _episode_id(label_subject, episode.fired), names, frozenset({episode.labels})
            )
            decisions.append(self._raise_alert(alert, minute))
        return decisions

    def _raise_alert(self, alert: OpenAlert, minute: int) -> AlertDecision:
        self.by_subject[alert.subject] = alert
        return AlertDecision("raise", minute, alert)

    def _storm_label_positions(self) -> list[int]:
        return [self.rule.labels.index(name) for name in self.rule.grouping.by]


def _episode_id(subject: str, minute: int) -> str:
    return f"{subject}@{minute_text(minute)}"
