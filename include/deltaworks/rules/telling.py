"""Which alerts the figures of a rule come to: one a label set, one for a storm, none while another rule holds it back.

Pure, and stepped with the minutes: the same episodes give the same alerts, whoever judges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from deltaworks.rules.judge import Episode, Judging
from deltaworks.rules.minutes import minute_text
from deltaworks.rules.subjects import Labels, subject_of
from deltaworks.specs.business_alert import RuleSpec

#: The rule that fires in a minute with labels these share with, and so holds this one back; None where none does.
HeldBy = Callable[[Labels, int], str | None]


def held_by_none(_labels: Labels, _minute: int) -> str | None:
    """Of rules without `unless`."""
    return None


@dataclass(frozen=True, slots=True)
class OpenAlert:
    """An alert that people know of. `by` are the labels of its subject, `members` the label sets it is of."""

    subject: str
    episode: str
    by: Mapping[str, str | None]
    members: frozenset[Labels]
    is_storm: bool = False


@dataclass(frozen=True, slots=True)
class Telling:
    """People are to be told that an alert was raised in a minute, or is over."""

    kind: Literal["raise", "resolve"]
    minute: int
    alert: OpenAlert


@dataclass(slots=True)
class Tellings:
    """The open alerts of one rule, by subject."""

    pipeline: str
    rule: RuleSpec
    open: dict[str, OpenAlert] = field(default_factory=dict)

    def follow(self, judging: Judging, minute: int, held_by: HeldBy = held_by_none) -> list[Telling]:
        """What people are to be told after a minute was judged. Episodes that are held back are marked so."""
        tellings = self._ends(judging, minute)
        untold = self._untold(judging, minute, held_by)
        for by, episodes in self._grouped(untold).items():
            tellings += self._raised(judging, minute, by, episodes)
        return tellings

    def end_all(self, minute: int) -> list[Telling]:
        """End every open alert: the rule is gone, or another one now."""
        tellings = [Telling("resolve", minute, alert) for alert in self.open.values()]
        self.open.clear()
        return tellings

    def _ends(self, judging: Judging, minute: int) -> list[Telling]:
        tellings = []
        for subject, alert in list(self.open.items()):
            left = frozenset(labels for labels in alert.members if labels in judging.firing)
            if not left:
                tellings.append(Telling("resolve", minute, alert))
                del self.open[subject]
            elif left != alert.members:
                self.open[subject] = replace(alert, members=left)
        return tellings

    def _untold(self, judging: Judging, minute: int, held_by: HeldBy) -> list[Episode]:
        covered = {labels for alert in self.open.values() for labels in alert.members}
        untold = []
        for labels, episode in judging.firing.items():
            if labels in covered:
                continue
            holder = held_by(labels, minute)
            if holder is None:
                untold.append(episode)
            elif not episode.held_by:
                judging.firing[labels] = replace(episode, held_by=holder)
        return untold

    def _grouped(self, episodes: list[Episode]) -> dict[Labels, list[Episode]]:
        places = self._places()
        groups: dict[Labels, list[Episode]] = {}
        for episode in episodes:
            groups.setdefault(tuple(episode.labels[place] for place in places), []).append(episode)
        return groups

    def _raised(self, judging: Judging, minute: int, by: Labels, episodes: list[Episode]) -> list[Telling]:
        subject = subject_of(self.pipeline, self.rule.name, self.rule.together.by, by)
        storm = self.open.get(subject)
        fresh = frozenset(episode.labels for episode in episodes)
        if storm is not None and storm.is_storm:
            self.open[subject] = replace(storm, members=storm.members | fresh)
            return []
        places = self._places()
        at_once = sum(tuple(labels[place] for place in places) == by for labels in judging.firing)
        if at_once >= self.rule.together.start:
            names = dict(zip(self.rule.together.by, by, strict=True))
            return [self._open(OpenAlert(subject, _episode(subject, minute), names, fresh, True), minute)]
        tellings = []
        for episode in episodes:
            own = subject_of(self.pipeline, self.rule.name, self.rule.labels, episode.labels)
            names = dict(zip(self.rule.labels, episode.labels, strict=True))
            alert = OpenAlert(own, _episode(own, episode.fired), names, frozenset({episode.labels}))
            tellings.append(self._open(alert, minute))
        return tellings

    def _open(self, alert: OpenAlert, minute: int) -> Telling:
        self.open[alert.subject] = alert
        return Telling("raise", minute, alert)

    def _places(self) -> list[int]:
        return [self.rule.labels.index(name) for name in self.rule.together.by]


def _episode(subject: str, minute: int) -> str:
    return f"{subject}@{minute_text(minute)}"
