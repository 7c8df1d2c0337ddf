"""What a value says beside its bounds and its baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from deltaworks.rules.machine import Verdict
from deltaworks.rules.subjects import Labels
from deltaworks.specs.business_alert import BoundsSpec, RuleSpec

#: From a median absolute deviation to a standard deviation, of values that are spread as a normal distribution.
SPREAD_OF_MAD: Final = 1.4826


class Observation(NamedTuple):
    """One figure in one minute. `value` is None where even `steps` minutes together have too few samples."""

    labels: Labels
    value: float | None
    samples: float | None = None
    steps: int = 1


class Baseline(NamedTuple):
    """What a value is compared with, in its own unit."""

    value: float
    spread: float = 0.0


Crossed = Callable[[float, Baseline | None], bool]


def crossing(bounds: BoundsSpec) -> Crossed:
    """Whether a value crosses all bounds that are named. Without a baseline those that need one are not crossed."""
    tests: list[Crossed] = []
    for name, bound in bounds.named_bounds.items():
        tests.append(_TESTS[name if name != "spreads" or bounds.is_upper else "spreads_below"](bound))
    return lambda value, baseline: all(crossed(value, baseline) for crossed in tests)


def _above(bound: float) -> Crossed:
    return lambda value, _: value > bound


def _below(bound: float) -> Crossed:
    return lambda value, _: value < bound


def _above_baseline(bound: float) -> Crossed:
    return lambda value, usual: usual is not None and value > usual.value * bound


def _below_baseline(bound: float) -> Crossed:
    return lambda value, usual: usual is not None and value < usual.value * bound


def _spreads(bound: float) -> Crossed:
    return lambda value, usual: usual is not None and value - usual.value > bound * usual.spread


def _spreads_below(bound: float) -> Crossed:
    return lambda value, usual: usual is not None and usual.value - value > bound * usual.spread


def _above_by(bound: float) -> Crossed:
    return lambda value, usual: usual is not None and value - usual.value > bound


def _below_by(bound: float) -> Crossed:
    return lambda value, usual: usual is not None and usual.value - value > bound


_TESTS: Final[Mapping[str, Callable[[float], Crossed]]] = {
    "above": _above,
    "below": _below,
    "above_baseline": _above_baseline,
    "below_baseline": _below_baseline,
    "spreads": _spreads,
    "spreads_below": _spreads_below,
    "and_above_by": _above_by,
    "and_below_by": _below_by,
}


class Bounds:
    """The bounds of a rule, made ready once."""

    def __init__(self, rule: RuleSpec) -> None:
        self._fire = crossing(rule.fire)
        self._clear = crossing(rule.clear_bounds)
        self._needs_baseline = bool(rule.fire.relative_bounds)

    def verdict(self, observation: Observation | None, baseline: Baseline | None) -> Verdict:
        """What a minute says."""
        if observation is None:
            return Verdict.ABSENT
        if observation.value is None:
            return Verdict.FEW
        if self._needs_baseline and baseline is None:
            return Verdict.LEARNING
        if self._fire(observation.value, baseline):
            return Verdict.BEYOND
        return Verdict.BETWEEN if self._clear(observation.value, baseline) else Verdict.CLEAR


def peer_baselines(rule: RuleSpec, observations: Sequence[Observation]) -> dict[Labels, Baseline]:
    """What the others of the same minute come to, for each label set that has enough of them.

    Values are weighted by their samples, so that of ratios it is the others' sum over their sum.
    """
    baseline = rule.baseline
    if baseline is None or baseline.of != "peers":
        return {}
    places = [rule.labels.index(name) for name in baseline.within]
    groups: dict[Labels, list[Observation]] = {}
    for observation in observations:
        if observation.value is not None:
            groups.setdefault(tuple(observation.labels[place] for place in places), []).append(observation)
    usual: dict[Labels, Baseline] = {}
    needs_spread = rule.fire.spreads is not None
    for peers in groups.values():
        if len(peers) <= baseline.min_peers:
            continue
        samples = sum(peer.samples or 0 for peer in peers)
        total = sum((peer.value or 0) * (peer.samples or 0) for peer in peers)
        for at, peer in enumerate(peers):
            rest = samples - (peer.samples or 0)
            if rest <= 0:
                continue
            value = (total - (peer.value or 0) * (peer.samples or 0)) / rest
            spread = _spread_without(peers, at) if needs_spread else 0.0
            usual[peer.labels] = Baseline(value, spread)
    return usual


def _spread_without(peers: Sequence[Observation], at: int) -> float:
    values = [peer.value or 0 for place, peer in enumerate(peers) if place != at]
    middle = median(values)
    return SPREAD_OF_MAD * median(abs(value - middle) for value in values)
