"""Decides whether to act on a notification: returns a plan, or a refusal with its reason. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from deltaworks.control.clock import parse_iso
from deltaworks.control.records.remediation import ACTED_STATES, RemediationRecord
from deltaworks.specs.environment_sections import RemediationSpec

MAX_NOTICE_AGE = timedelta(minutes=5)
DAY = timedelta(hours=24)
#: Weights within this difference are equal.
WEIGHT_TOLERANCE = 1e-6


class RefusalReason(StrEnum):
    """Why a remediation does not act."""

    STALE_NOTICE = "stale_notification"
    NOT_FIRING = "not_firing"
    NO_SOURCE = "no_source"
    NO_TARGET = "no_target"
    ON_HOLD = "on_hold"
    COOLDOWN = "cooldown"
    DAILY_LIMIT = "daily_limit"
    IN_PROGRESS = "in_progress"
    INVALID_WEIGHTS = "invalid_weights"
    AT_FLOOR = "at_floor"
    PING_PONG = "ping_pong"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A decision not to act, with an explanation."""

    reason: RefusalReason
    text: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A shift of weight between two targets; `before` and `after` are the weights of all targets."""

    source: str
    target: str
    before: Mapping[str, float]
    after: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The facts on which a decision is based.

    Args:
        notice_at: time of the notification.
        is_firing: whether its alert is still open.
        sources: the targets that the alert concerns.
        unhealthy: targets that fire or are unknown, with the reason.
        hold_reason: who put the remediation on hold, and why.
        records: earlier actions.
        weights: current weights by target.
    """

    now: datetime
    notification_at: datetime | None
    is_firing: bool
    sources: frozenset[str]
    unhealthy: Mapping[str, str]
    hold_reason: str | None
    records: Sequence[RemediationRecord]
    weights: Mapping[str, float]


def early_refusal(spec: RemediationSpec, situation: Situation) -> Refusal | None:
    """Returns a refusal that does not depend on weights, so that the traffic address need not be called; otherwise
    None.
    """
    now = situation.now
    if situation.hold_reason is not None:
        return Refusal(RefusalReason.ON_HOLD, f"it is held: {situation.hold_reason}")
    if situation.notification_at is None or abs(now - situation.notification_at) > MAX_NOTICE_AGE:
        return Refusal(
            RefusalReason.STALE_NOTICE, f"the notification from {situation.notification_at} is older than 5 minutes"
        )
    if not situation.is_firing:
        return Refusal(RefusalReason.NOT_FIRING, "its alert is no longer open")
    if len(situation.sources) != 1:
        named = ", ".join(sorted(situation.sources)) or "none"
        reason = RefusalReason.NO_TARGET if situation.sources else RefusalReason.NO_SOURCE
        return Refusal(reason, f"it concerns {named} of the targets; exactly one is required, with another to shift to")
    return _limit_refusal(spec, situation)


def _limit_refusal(spec: RemediationSpec, situation: Situation) -> Refusal | None:
    """Returns a refusal because of earlier actions (cooldown, daily limit, pending verification), or None."""
    now = situation.now
    acted = [record for record in situation.records if record.state in ACTED_STATES]
    under_way = [record for record in acted if record.state in ("planned", "called")]
    if under_way:
        return Refusal(
            RefusalReason.IN_PROGRESS, f"the shift for notification {under_way[0].notification} is not verified yet"
        )
    times = [at for record in acted if (at := parse_iso(record.at)) is not None]
    cooldown = timedelta(minutes=spec.cooldown_minutes)
    if times and now - max(times) < cooldown:
        return Refusal(
            RefusalReason.COOLDOWN, f"it acted at {max(times):%H:%M}, less than {spec.cooldown_minutes:g} min ago"
        )
    today = sum(now - at < DAY for at in times)
    if today >= spec.max_per_day:
        return Refusal(RefusalReason.DAILY_LIMIT, f"it acted {today} times within a day, as often as it may")
    return None


def decide(spec: RemediationSpec, situation: Situation) -> Plan | Refusal:
    """Decides on a notification that `early_refusal` does not refuse."""
    weights = situation.weights
    problem = _weights_problem(spec, weights)
    if problem:
        return Refusal(RefusalReason.INVALID_WEIGHTS, problem)
    (source,) = situation.sources
    healthy = [target for target in spec.targets if target != source and target not in situation.unhealthy]
    if not healthy:
        reasons = "; ".join(text for target, text in situation.unhealthy.items() if target != source)
        return Refusal(RefusalReason.NO_TARGET, f"no other target is healthy: {reasons}")
    moved_weight = min(spec.step, weights[source] - spec.floor)
    if moved_weight <= WEIGHT_TOLERANCE:
        return Refusal(
            RefusalReason.AT_FLOOR, (f"{source} has weight {weights[source]:g}, and its floor is {spec.floor:g}")
        )
    # Shift to the healthy target with the least weight.
    target = min(healthy, key=lambda name: (weights[name], spec.targets.index(name)))
    opposite = [record for record in situation.records if (record.source, record.target) == (target, source)]
    for record in opposite:
        at = parse_iso(record.at)
        if record.state in ("called", "verified") and at is not None and situation.now - at < DAY:
            text = f"at {at:%H:%M} it moved weight from {target} to {source}, and would move it back now"
            return Refusal(RefusalReason.PING_PONG, text)
    after = {
        **weights,
        source: round(weights[source] - moved_weight, 6),
        target: round(weights[target] + moved_weight, 6),
    }
    return Plan(source, target, dict(weights), after)


def _weights_problem(spec: RemediationSpec, weights: Mapping[str, float]) -> str:
    """Returns why weights cannot be shifted; empty if they can."""
    missing = [target for target in spec.targets if target not in weights]
    if missing:
        return f"the address returns no weight of {', '.join(missing)}"
    if any(weight < 0 for weight in weights.values()) or abs(sum(weights.values()) - 1) > 0.01:
        return f"the weights {dict(weights)} do not add up to 1"
    return ""


def weights_equal(first: Mapping[str, float], second: Mapping[str, float]) -> bool:
    """Whether weights are equal, except for rounding."""
    return set(first) == set(second) and all(
        abs(weight - second[name]) <= WEIGHT_TOLERANCE for name, weight in first.items()
    )
