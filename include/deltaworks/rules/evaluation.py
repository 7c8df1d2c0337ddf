"""Evaluates minutes of one rule in order; shared by the rule process and the backtest.

Pure: takes rows and baselines and updates the state of each series. Uses neither a clock nor storage. Event minutes are
integers counted since 1970 in UTC, formatted as their start time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from deltaworks.rules.subjects import Labels
from deltaworks.rules.verdicts import (
    START,
    Baseline,
    NoData,
    Observation,
    RuleBounds,
    SeriesState,
    next_state,
    peer_baselines,
)
from deltaworks.specs.alert_rule import RuleSpec

#: Returns the baseline of a label set in a minute, or None.
BaselineLookup = Callable[[Labels, int], Baseline | None]
#: A series without rows for this long is removed.
EXPIRY_MINUTES = 24 * 60


def no_baseline(_labels: Labels, _minute: int) -> Baseline | None:
    """Returns None: a look-up for rules without a baseline."""
    return None


@dataclass(slots=True)
class Series:
    """One label set of a rule: its state, last row and last baseline."""

    state: SeriesState = START
    last_row_minute: int = 0
    changed_minute: int = 0
    last_row: Observation | None = None
    baseline: Baseline | None = None


@dataclass(frozen=True, slots=True)
class Episode:
    """A time range in which one label set fired.

    - `began`: the minute in which the bounds were crossed; `fired`: the minute that fired; `ended`: None if open.
    - `worst`: the most extreme value.
    - `inhibited_by`: the rule that suppressed the notification.
    """

    labels: Labels
    began: int
    fired: int
    ended: int | None = None
    worst: float | None = None
    inhibited_by: str = ""


@dataclass(frozen=True, slots=True)
class MinuteRows:
    """The rows of one minute, one per label set. `width` is the number of label sets before truncation."""

    minute: int
    rows: Sequence[Observation]
    width: int = 0


@dataclass(slots=True)
class RuleEvaluation:
    """The state of one rule after `last_minute`; None before the first minute."""

    rule: RuleSpec
    last_minute: int | None = None
    series: dict[Labels, Series] = field(default_factory=dict)
    #: Open episodes by labels.
    firing: dict[Labels, Episode] = field(default_factory=dict)
    _bounds: RuleBounds = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._bounds = RuleBounds(self.rule)

    def evaluate(
        self, minute_rows: MinuteRows, lookup: BaselineLookup = no_baseline, *, may_be_zero: bool = True
    ) -> list[Episode]:
        """Evaluates the next minute; returns the episodes that ended.

        Args:
            may_be_zero: whether a label set without a row has the value 0, if its rule declares so. If not, its state
                stays.

        Raises:
            ValueError: the minute is not after the last one.
        """
        minute, rule = minute_rows.minute, self.rule
        if self.last_minute is not None and minute <= self.last_minute:
            raise ValueError(f"minute {minute} is not after {self.last_minute}")
        rows = {observation.labels: observation for observation in minute_rows.rows}
        peers = peer_baselines(rule, minute_rows.rows)
        is_zero = rule.no_data == "zero" and may_be_zero
        no_data: NoData = "hold" if rule.no_data == "zero" else rule.no_data
        ended = []
        for labels in (*rows, *(labels for labels in self.series if labels not in rows)):
            series = self.series.setdefault(labels, Series(changed_minute=minute))
            row = rows.get(labels)
            verdict_row = Observation(labels, 0.0) if row is None and is_zero else row
            before = series.state
            baseline = self._baseline(labels, minute, verdict_row, peers, lookup)
            series.state = next_state(
                before,
                self._bounds.verdict(verdict_row, baseline),
                minute,
                for_steps=rule.for_steps,
                keep_firing_steps=rule.keep_firing_steps,
                no_data=no_data,
            )
            if row is not None:
                series.last_row_minute = minute
            if verdict_row is not None:
                series.last_row, series.baseline = verdict_row, baseline
            if series.state.phase != before.phase or series.state.unknown != before.unknown:
                series.changed_minute = minute
            if episode := self._update_episode(labels, series, minute):
                ended.append(episode)
        self.last_minute = minute
        return ended + self._expire_series(minute)

    def skip_to(self, minute: int) -> None:
        """Skips minutes up to this one; all series become unknown."""
        self.last_minute = minute
        for series in self.series.values():
            series.state = series.state._replace(unknown=True)
            series.changed_minute = minute

    def _baseline(
        self,
        labels: Labels,
        minute: int,
        row: Observation | None,
        peers: Mapping[Labels, Baseline],
        lookup: BaselineLookup,
    ) -> Baseline | None:
        declared = self.rule.baseline
        if declared is None or row is None:
            return None
        if declared.kind == "fixed":
            return Baseline(declared.value or 0.0)
        return peers.get(labels) if declared.kind == "peers" else lookup(labels, minute)

    def _update_episode(self, labels: Labels, series: Series, minute: int) -> Episode | None:
        """Opens or updates the episode of a series; returns it if it ended."""
        state, current = series.state, self.firing.get(labels)
        if state.fired is None:
            if current is None:
                return None
            del self.firing[labels]
            return replace(current, ended=minute)
        if current is None:
            value = series.last_row.value if series.last_row is not None else None
            self.firing[labels] = Episode(labels, state.began or state.fired, state.fired, worst=value)
        elif (
            (series.last_row_minute == minute or self.rule.no_data == "zero")
            and series.last_row is not None
            and series.last_row.value is not None
        ):
            self.firing[labels] = self._with_worst(current, series.last_row.value)
        return None

    def _with_worst(self, episode: Episode, value: float) -> Episode:
        worst = episode.worst
        is_worse = worst is None or (value > worst if self.rule.fire.is_upper else value < worst)
        if not is_worse:
            return episode
        return replace(episode, worst=value)

    def _expire_series(self, minute: int) -> list[Episode]:
        """Removes series without rows for a day, and ends their episodes."""
        oldest_minute = minute - max(EXPIRY_MINUTES, 2 * self.rule.step_minutes)
        expired = [
            labels
            for labels, figure in self.series.items()
            if figure.last_row_minute < oldest_minute and figure.changed_minute < oldest_minute
        ]
        ended = []
        for labels in expired:
            del self.series[labels]
            episode = self.firing.pop(labels, None)
            if episode is not None:
                ended.append(replace(episode, ended=minute))
        return ended


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def minute_of(at: datetime) -> int:
    """Returns the minute of a time."""
    return int(at.timestamp() // 60)


def minute_start(minute: int) -> datetime:
    """Returns the start of a minute."""
    return _EPOCH + timedelta(minutes=minute)


@lru_cache(maxsize=8192)
def minute_text(minute: int) -> str:
    """Formats a minute as its start time, for example 2024-03-01T22:56Z."""
    return f"{minute_start(minute):%Y-%m-%dT%H:%MZ}"


@lru_cache(maxsize=8192)
def parse_minute(text: str) -> int:
    """Parses a minute formatted by `minute_text`.

    Raises:
        ValueError: the text is not a minute.
    """
    return minute_of(datetime.strptime(text, "%Y-%m-%dT%H:%MZ").replace(tzinfo=UTC))
