"""Judges minutes of one rule, one after the other: the core that the process and a backtest share.

Pure: it takes what was observed and what is usual, and says what became of each figure. It knows no clock and no
storage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from deltaworks.rules.machine import START, FigureState, step
from deltaworks.rules.subjects import Labels
from deltaworks.rules.verdicts import Baseline, Bounds, Observation, peer_baselines
from deltaworks.specs.business_alert import RuleSpec

#: What is usual of a label set in a minute, None where nothing is known.
Usual = Callable[[Labels, int], Baseline | None]
#: A figure that had no row for so many minutes is forgotten: its labels are gone.
FORGET_MINUTES = 24 * 60


def nothing_usual(_labels: Labels, _minute: int) -> Baseline | None:
    """Of rules that compare with nothing."""
    return None


@dataclass(slots=True)
class Figure:
    """A label set of a rule: its state, and what was observed last. `seen` is the last minute with a row."""

    state: FigureState = START
    seen: int = 0
    since: int = 0
    last: Observation | None = None
    usual: Baseline | None = None


@dataclass(frozen=True, slots=True)
class Episode:
    """A time for which one label set fired: `began` beyond the bounds, `fired`, and `ended`, None while it lasts.

    `worst` is the most extreme value, and `held_by` the rule for which nobody was told.
    """

    labels: Labels
    began: int
    fired: int
    ended: int | None = None
    worst: float | None = None
    held_by: str = ""


@dataclass(frozen=True, slots=True)
class Minute:
    """What was observed in one minute: a row a label set. `width` is how many there were, those left out included."""

    minute: int
    observations: Sequence[Observation]
    width: int = 0


@dataclass(slots=True)
class Judging:
    """One rule as it stands after `last_minute`; None before the first."""

    rule: RuleSpec
    last_minute: int | None = None
    figures: dict[Labels, Figure] = field(default_factory=dict)
    #: Those that fire, by labels.
    firing: dict[Labels, Episode] = field(default_factory=dict)
    _bounds: Bounds = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._bounds = Bounds(self.rule)

    def take(self, observed: Minute, usual: Usual = nothing_usual) -> list[Episode]:
        """Judge the next minute; the episodes that ended with it.

        Raises:
            ValueError: the minute does not come after the last one.
        """
        minute, rule = observed.minute, self.rule
        if self.last_minute is not None and minute <= self.last_minute:
            raise ValueError(f"minute {minute} is not after {self.last_minute}")
        rows = {observation.labels: observation for observation in observed.observations}
        peers = peer_baselines(rule, observed.observations)
        ended = []
        for labels in (*rows, *(labels for labels in self.figures if labels not in rows)):
            figure = self.figures.setdefault(labels, Figure(since=minute))
            row = rows.get(labels)
            before = figure.state
            baseline = self._baseline(labels, minute, row, peers, usual)
            figure.state = step(
                before,
                self._bounds.verdict(row, baseline),
                minute,
                for_steps=rule.for_steps,
                keep_steps=rule.keep_steps,
                no_data=rule.no_data,
            )
            if row is not None:
                figure.seen, figure.last, figure.usual = minute, row, baseline
            if figure.state.phase != before.phase or figure.state.unknown != before.unknown:
                figure.since = minute
            if episode := self._follow(labels, figure, minute):
                ended.append(episode)
        self.last_minute = minute
        return ended + self._forget(minute)

    def skip_to(self, minute: int) -> None:
        """Leave out the minutes up to this one: of what they would have said, nothing is known."""
        self.last_minute = minute
        for figure in self.figures.values():
            figure.state = figure.state._replace(unknown=True)
            figure.since = minute

    def _baseline(
        self, labels: Labels, minute: int, row: Observation | None, peers: Mapping[Labels, Baseline], usual: Usual
    ) -> Baseline | None:
        declared = self.rule.baseline
        if declared is None or row is None:
            return None
        if declared.of == "fixed":
            return Baseline(declared.value or 0.0)
        return peers.get(labels) if declared.of == "peers" else usual(labels, minute)

    def _follow(self, labels: Labels, figure: Figure, minute: int) -> Episode | None:
        """Keep the episode of a figure; the one that has ended with this minute."""
        state, open_one = figure.state, self.firing.get(labels)
        if state.fired is None:
            if open_one is None:
                return None
            del self.firing[labels]
            return replace(open_one, ended=minute)
        if open_one is None:
            value = figure.last.value if figure.last is not None else None
            self.firing[labels] = Episode(labels, state.began or state.fired, state.fired, worst=value)
        elif figure.seen == minute and figure.last is not None and figure.last.value is not None:
            self.firing[labels] = self._worsened(open_one, figure.last.value)
        return None

    def _worsened(self, episode: Episode, value: float) -> Episode:
        worst = episode.worst
        worse = worst is None or (value > worst if self.rule.fire.is_upper else value < worst)
        if not worse:
            return episode
        return replace(episode, worst=value)

    def _forget(self, minute: int) -> list[Episode]:
        """Drop figures without a row for a day, and end what they were firing."""
        horizon = minute - max(FORGET_MINUTES, 2 * self.rule.step_minutes)
        gone = [labels for labels, figure in self.figures.items() if figure.seen < horizon and figure.since < horizon]
        ended = []
        for labels in gone:
            del self.figures[labels]
            episode = self.firing.pop(labels, None)
            if episode is not None:
                ended.append(replace(episode, ended=minute))
        return ended
