"""Compares a value with a rule's bounds and its baseline, and keeps the state of each series over event minutes:
`learning → ok ⇄ pending → firing ⇄ recovering → ok`.

Pure and deterministic. A minute with too few samples leaves the state unchanged. The effect of a minute without a row
depends on `no_data`: it leaves the state unchanged, or counts as clear or unknown. A value between the `fire` and
`clear` bounds neither fires nor clears: a pending series returns to ok, a firing one keeps firing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from statistics import median
from typing import Final, Literal, NamedTuple

from deltaworks.rules.subjects import Labels
from deltaworks.specs.alert_rule import BoundsSpec, RuleSpec

Phase = Literal["learning", "ok", "pending", "firing", "recovering"]
NoData = Literal["unknown", "hold", "ok"]


class Verdict(IntEnum):
    """The result of one minute for a series."""

    #: All `fire` bounds are crossed.
    BREACHED = 0
    #: The `fire` bounds are not crossed, but the `clear` bounds still are.
    BETWEEN = 1
    CLEAR = 2
    #: There is a row with too few samples.
    TOO_FEW_SAMPLES = 3
    #: There is no baseline yet.
    LEARNING = 4
    #: There is no row.
    NO_ROW = 5


class SeriesState(NamedTuple):
    """The state of a series. Minutes are counted since 1970.

    - `steps`: consecutive minutes towards the next phase: beyond the bounds while pending, clear while recovering.
    - `began`: the first minute beyond the bounds; `fired`: the minute that fired. Both are None unless the series is
      pending or fires.
    """

    phase: Phase = "learning"
    consecutive_minutes: int = 0
    began: int | None = None
    fired: int | None = None
    unknown: bool = False


START: Final = SeriesState()
OK: Final = SeriesState("ok")


def next_state(
    before: SeriesState,
    verdict: Verdict,
    minute: int,
    *,
    for_steps: int,
    keep_firing_steps: int,
    no_data: NoData = "unknown",
) -> SeriesState:
    """Returns the state after one more minute.

    Args:
        for_steps: consecutive minutes beyond the bounds that fire.
        keep_firing_steps: consecutive clear minutes that end an episode.
        no_data: the meaning of a minute without a row.
    """
    if verdict is Verdict.NO_ROW:
        if no_data == "ok":
            verdict = Verdict.CLEAR
        else:
            return before if no_data == "hold" or before.unknown else before._replace(unknown=True)
    if verdict is Verdict.TOO_FEW_SAMPLES:
        return before
    if before.fired is None:
        return _not_firing(before, verdict, minute, for_steps)
    if verdict is Verdict.CLEAR:
        steps = before.consecutive_minutes + 1
        return OK if steps >= keep_firing_steps else SeriesState("recovering", steps, before.began, before.fired)
    if verdict is Verdict.LEARNING:
        return before._replace(unknown=False)
    return SeriesState("firing", 0, before.began, before.fired)


def _not_firing(before: SeriesState, verdict: Verdict, minute: int, for_steps: int) -> SeriesState:
    if verdict is Verdict.BREACHED:
        steps = before.consecutive_minutes + 1
        began = minute if before.began is None else before.began
        return SeriesState("firing", 0, began, minute) if steps >= for_steps else SeriesState("pending", steps, began)
    return START if verdict is Verdict.LEARNING else OK


#: Converts a median absolute deviation to the standard deviation of a normal distribution.
MAD_TO_STANDARD_DEVIATION: Final = 1.4826


class Observation(NamedTuple):
    """One row: the value of a label set in a minute. `value` is None if all `steps` combined minutes have too few
    samples.
    """

    labels: Labels
    value: float | None
    samples: float | None = None
    steps: int = 1


class Baseline(NamedTuple):
    """The baseline of a value, in its own unit."""

    value: float
    spread: float = 0.0


BoundTest = Callable[[float, Baseline | None], bool]


def bounds_test(bounds: BoundsSpec) -> BoundTest:
    """Returns a function that decides whether a value crosses all declared bounds. Without a baseline, it does not
    cross relative bounds.
    """
    tests: list[BoundTest] = []
    for name, bound in bounds.named_bounds.items():
        tests.append(_BOUND_TESTS[name if name != "deviations" or bounds.is_upper else "spreads_below"](bound))
    return lambda value, baseline: all(crossed(value, baseline) for crossed in tests)


def _above(bound: float) -> BoundTest:
    return lambda value, _: value > bound


def _below(bound: float) -> BoundTest:
    return lambda value, _: value < bound


def _above_baseline(bound: float) -> BoundTest:
    return lambda value, baseline: baseline is not None and value > baseline.value * bound


def _below_baseline(bound: float) -> BoundTest:
    return lambda value, baseline: baseline is not None and value < baseline.value * bound


def _above_by_deviations(bound: float) -> BoundTest:
    return lambda value, baseline: baseline is not None and value - baseline.value > bound * baseline.spread


def _below_by_deviations(bound: float) -> BoundTest:
    return lambda value, baseline: baseline is not None and baseline.value - value > bound * baseline.spread


def _above_baseline_by(bound: float) -> BoundTest:
    return lambda value, baseline: baseline is not None and value - baseline.value > bound


def _below_baseline_by(bound: float) -> BoundTest:
    return lambda value, baseline: baseline is not None and baseline.value - value > bound


_BOUND_TESTS: Final[Mapping[str, Callable[[float], BoundTest]]] = {
    "above": _above,
    "below": _below,
    "above_baseline": _above_baseline,
    "below_baseline": _below_baseline,
    "deviations": _above_by_deviations,
    "spreads_below": _below_by_deviations,
    "min_increase": _above_baseline_by,
    "min_decrease": _below_baseline_by,
}


def bound_value(bounds: BoundsSpec, baseline: Baseline | None) -> float | None:
    """Returns the value beyond which all declared bounds are crossed; None while a relative bound has no baseline."""
    sign = bounds.sign
    values: list[float] = []
    for name, bound in bounds.named_bounds.items():
        if name in ("above", "below"):
            values.append(bound)
        elif baseline is None:
            return None
        elif name in ("above_baseline", "below_baseline"):
            values.append(baseline.value * bound)
        else:
            values.append(baseline.value + sign * bound * (baseline.spread if name == "deviations" else 1))
    return max(values) if bounds.is_upper else min(values)


class RuleBounds:
    """The bounds of a rule, compiled once."""

    def __init__(self, rule: RuleSpec) -> None:
        self._fire = bounds_test(rule.fire)
        self._clear = bounds_test(rule.clear_bounds)
        self._needs_baseline = bool(rule.fire.relative_bounds)

    def verdict(self, observation: Observation | None, baseline: Baseline | None) -> Verdict:
        """Returns the verdict of a minute."""
        if observation is None:
            return Verdict.NO_ROW
        if observation.value is None:
            return Verdict.TOO_FEW_SAMPLES
        if self._needs_baseline and baseline is None:
            return Verdict.LEARNING
        if self._fire(observation.value, baseline):
            return Verdict.BREACHED
        return Verdict.BETWEEN if self._clear(observation.value, baseline) else Verdict.CLEAR


def peer_baselines(rule: RuleSpec, observations: Sequence[Observation]) -> dict[Labels, Baseline]:
    """Returns a baseline for each label set, computed from the other label sets of the same minute if there are enough.

    It is their mean weighted by samples. For a ratio this is the ratio of their sums.
    """
    baseline = rule.baseline
    if baseline is None or baseline.kind != "peers":
        return {}
    positions = [rule.labels.index(name) for name in baseline.within]
    groups: dict[Labels, list[Observation]] = {}
    for observation in observations:
        if observation.value is not None:
            groups.setdefault(tuple(observation.labels[position] for position in positions), []).append(observation)
    baselines: dict[Labels, Baseline] = {}
    needs_spread = rule.fire.deviations is not None
    for peers in groups.values():
        if len(peers) <= baseline.min_peers:
            continue
        samples = sum(peer.samples or 0 for peer in peers)
        total = sum((peer.value or 0) * (peer.samples or 0) for peer in peers)
        for at, peer in enumerate(peers):
            other_samples = samples - (peer.samples or 0)
            if other_samples <= 0:
                continue
            value = (total - (peer.value or 0) * (peer.samples or 0)) / other_samples
            spread = _spread_of_others(peers, at) if needs_spread else 0.0
            baselines[peer.labels] = Baseline(value, spread)
    return baselines


def _spread_of_others(peers: Sequence[Observation], excluded: int) -> float:
    values = [peer.value or 0 for index, peer in enumerate(peers) if index != excluded]
    middle = median(values)
    return MAD_TO_STANDARD_DEVIATION * median(abs(value - middle) for value in values)
