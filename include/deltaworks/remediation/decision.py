"""Decides what follows from a notice: a plan, or why there is none. Pure: nothing here reads or writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from deltaworks.control.clock import parse_iso
from deltaworks.control.records.remediation import ACTED_STATES, RemediationRecord
from deltaworks.specs.remediation import RemediationSpec

FRESH = timedelta(minutes=5)
DAY = timedelta(hours=24)
#: Weights that differ by no more are the same.
SAME = 1e-6


class Refusal(StrEnum):
    """Why nothing is done about a notice."""

    STALE_NOTICE = "stale_notice"
    NOT_FIRING = "not_firing"
    NO_SOURCE = "no_source"
    NO_TARGET = "no_target"
    HELD = "held"
    COOLING = "cooling"
    DAILY_BOUND = "daily_bound"
    UNDER_WAY = "under_way"
    WEIGHTS_UNFIT = "weights_unfit"
    AT_FLOOR = "at_floor"
    PING_PONG = "ping_pong"


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal, with what it rests on."""

    reason: Refusal
    text: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Weight that goes from one target to another; `before` and `after` are the weights of all."""

    source: str
    target: str
    before: Mapping[str, float]
    after: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What was read before deciding.

    Args:
        at: when the notice was given. firing: whether its alert is still open. sources: the targets it is about.
        sick: targets that fire or of which nothing is known, with how that is known. held: who holds it back and why.
        records: what this remediation did before. weights: as the address tells them.
    """

    now: datetime
    at: datetime | None
    firing: bool
    sources: frozenset[str]
    sick: Mapping[str, str]
    held: str | None
    records: Sequence[RemediationRecord]
    weights: Mapping[str, float]


def refusal_before_weights(spec: RemediationSpec, situation: Situation) -> Refused | None:
    """Why nothing is done, as far as that does not rest on weights: then nobody is called."""
    now = situation.now
    if situation.held is not None:
        return Refused(Refusal.HELD, f"it is held: {situation.held}")
    if situation.at is None or abs(now - situation.at) > FRESH:
        return Refused(Refusal.STALE_NOTICE, f"the notice is of {situation.at}, more than 5 minutes ago")
    if not situation.firing:
        return Refused(Refusal.NOT_FIRING, "its alert is not open any more")
    if len(situation.sources) != 1:
        named = ", ".join(sorted(situation.sources)) or "none"
        reason = Refusal.NO_TARGET if situation.sources else Refusal.NO_SOURCE
        return Refused(reason, f"it is about {named} of the targets, and one is needed that others can relieve")
    return _bound_reached(spec, situation)


def _bound_reached(spec: RemediationSpec, situation: Situation) -> Refused | None:
    """What it did before, as far as that forbids another shift now."""
    now = situation.now
    acted = [record for record in situation.records if record.state in ACTED_STATES]
    under_way = [record for record in acted if record.state in ("planned", "called")]
    if under_way:
        return Refused(Refusal.UNDER_WAY, f"what notice {under_way[0].notification} set off is not verified yet")
    times = [at for record in acted if (at := parse_iso(record.at)) is not None]
    cooldown = timedelta(minutes=spec.cooldown_minutes)
    if times and now - max(times) < cooldown:
        return Refused(Refusal.COOLING, f"it acted at {max(times):%H:%M}, less than {spec.cooldown_minutes:g} min ago")
    today = sum(now - at < DAY for at in times)
    if today >= spec.most_per_day:
        return Refused(Refusal.DAILY_BOUND, f"it acted {today} times within a day, as often as it may")
    return None


def decide(spec: RemediationSpec, situation: Situation) -> Plan | Refused:
    """What follows from a notice of which `refusal_before_weights` says nothing."""
    weights = situation.weights
    unfit = _unfit(spec, weights)
    if unfit:
        return Refused(Refusal.WEIGHTS_UNFIT, unfit)
    (source,) = situation.sources
    healthy = [target for target in spec.targets if target != source and target not in situation.sick]
    if not healthy:
        why = "; ".join(text for target, text in situation.sick.items() if target != source)
        return Refused(Refusal.NO_TARGET, f"no other target is well: {why}")
    moved = min(spec.step, weights[source] - spec.floor)
    if moved <= SAME:
        return Refused(Refusal.AT_FLOOR, f"{source} has {weights[source]:g}, and keeps {spec.floor:g}")
    # Where there are several, the one that carries least.
    target = min(healthy, key=lambda name: (weights[name], spec.targets.index(name)))
    opposite = [record for record in situation.records if (record.source, record.target) == (target, source)]
    for record in opposite:
        at = parse_iso(record.at)
        if record.state in ("called", "verified") and at is not None and situation.now - at < DAY:
            text = f"at {at:%H:%M} it moved weight from {target} to {source}, and would move it back now"
            return Refused(Refusal.PING_PONG, text)
    after = {**weights, source: round(weights[source] - moved, 6), target: round(weights[target] + moved, 6)}
    return Plan(source, target, dict(weights), after)


def _unfit(spec: RemediationSpec, weights: Mapping[str, float]) -> str:
    """Why weights are none that can be shifted; empty where they are."""
    missing = [target for target in spec.targets if target not in weights]
    if missing:
        return f"the address tells no weight of {', '.join(missing)}"
    if any(weight < 0 for weight in weights.values()) or abs(sum(weights.values()) - 1) > 0.01:
        return f"the weights {dict(weights)} do not add up to 1"
    return ""


def are_same(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Whether weights are the same, but for rounding."""
    return set(one) == set(other) and all(abs(weight - other[name]) <= SAME for name, weight in one.items())
