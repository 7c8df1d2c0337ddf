"""Compares a value with a rule's bounds and its baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from deltaworks.rules.series_state import Verdict
from deltaworks.rules.subjects import Labels
from deltaworks.specs.alert_rule import BoundsSpec, RuleSpec

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
