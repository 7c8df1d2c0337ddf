"""What people read of a rule: its bounds, its figures and its alerts in words, and the detail of its notices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deltaworks.rules.judge import Figure, Judging
from deltaworks.rules.minutes import minute_text
from deltaworks.rules.states import TellingRecord
from deltaworks.rules.subjects import FIRING, MOST_LISTED, Labels, RuleDetail
from deltaworks.rules.telling import OpenAlert, Telling
from deltaworks.specs.business_alert import BoundsSpec, RuleSpec

_WORDS: Mapping[str, str] = {
    "above": "above {0:g}",
    "below": "below {0:g}",
    "above_baseline": "above {0:g} times the baseline",
    "below_baseline": "below {0:g} times the baseline",
    "spreads": "{0:g} spreads away from it",
    "and_above_by": "above it by {0:g}",
    "and_below_by": "below it by {0:g}",
}


def bounds_text(bounds: BoundsSpec) -> str:
    """Bounds in words: above 1.1 times the baseline and above it by 20."""
    return " and ".join(_WORDS[name].format(value) for name, value in bounds.named_bounds.items())


def labels_text(rule: RuleSpec, labels: Labels) -> str:
    """A label set in words: cdn a, region eu; `all` of a rule without labels."""
    pairs = (f"{name} {'unknown' if value is None else value}" for name, value in zip(rule.labels, labels, strict=True))
    return ", ".join(pairs) or "all"


def number(value: float | None) -> str:
    """A figure with as many digits as say something."""
    return "?" if value is None else f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def telling_record(
    telling: Telling, judging: Judging, *, reads: Sequence[str], data_to: str, before: Sequence[str] = ()
) -> TellingRecord:
    """What the alert is told of a rule that fires, or does no more."""
    alert, rule = telling.alert, judging.rule
    detail = RuleDetail(
        pipeline=alert.episode.partition(".")[0], rule=rule.name, episode=alert.episode, labels=dict(alert.by)
    )
    if telling.kind == "resolve":
        over = f"{rule.name} is over: {_who(alert)}, as of {minute_text(telling.minute)}."
        return TellingRecord(
            kind="resolve", cause=FIRING, subject=alert.subject, severity=None, summary=over, detail=detail.record()
        )
    worst_labels, worst = _worst(judging, alert)
    episode = judging.firing[worst_labels]
    last, usual = worst.last, worst.usual
    value = last.value if last is not None and last.value is not None else episode.worst
    detail = RuleDetail(
        pipeline=detail.pipeline,
        rule=rule.name,
        episode=alert.episode,
        labels=dict(alert.by),
        label_sets=_listed(rule, judging, alert),
        label_sets_count=len(alert.members),
        minute=minute_text(telling.minute),
        began=minute_text(episode.began),
        fired=minute_text(episode.fired),
        value=value,
        samples=None if last is None else last.samples,
        baseline=None if usual is None else usual.value,
        spread=None if usual is None else usual.spread,
        bounds=bounds_text(rule.fire),
        reads=list(reads),
        data_to=data_to,
        before=list(before),
        next_step=rule.runbook,
    )
    return TellingRecord(
        kind="raise",
        cause=FIRING,
        subject=alert.subject,
        severity=rule.severity,
        summary=_summary(rule, alert, worst_labels, detail),
        detail=detail.record(),
    )


def _summary(rule: RuleSpec, alert: OpenAlert, worst: Labels, detail: RuleDetail) -> str:
    compared = "" if detail.baseline is None else f", usual is {number(detail.baseline)}"
    of = f" of {labels_text(rule, worst)}" if alert.is_storm else ""
    sentences = [
        f"{rule.description.rstrip('.') or rule.name}: {_who(alert)} at {number(detail.value)}{of}{compared}; "
        f"it is to be told when {detail.bounds} for {rule.for_minutes} minutes.",
        f"Beyond it since {detail.began}; data of {', '.join(detail.reads)} reach to {detail.data_to or '?'}.",
    ]
    if detail.before:
        sentences.append(f"Before that: {'; '.join(detail.before)}.")
    if rule.runbook:
        sentences.append(rule.runbook)
    return " ".join(sentences)


def _who(alert: OpenAlert) -> str:
    if not alert.is_storm:
        return _of_names(alert.by)
    within = f" of {_of_names(alert.by)}" if alert.by else ""
    return f"{len(alert.members)} at once{within}"


def _of_names(by: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {'unknown' if value is None else value}" for name, value in by.items()) or "all"


def _worst(judging: Judging, alert: OpenAlert) -> tuple[Labels, Figure]:
    """The label set with the most extreme value, of the members that fire."""
    sign = 1 if judging.rule.fire.is_upper else -1
    members = sorted(
        (labels for labels in alert.members if labels in judging.firing),
        key=lambda labels: [text or "" for text in labels],
    )

    def extreme(labels: Labels) -> float:
        last = judging.figures[labels].last
        return sign * last.value if last is not None and last.value is not None else float("-inf")

    labels = max(members, key=extreme)
    return labels, judging.figures[labels]


def _listed(rule: RuleSpec, judging: Judging, alert: OpenAlert) -> list[dict[str, str | None]]:
    members = sorted(alert.members & judging.firing.keys(), key=lambda labels: [text or "" for text in labels])
    return [dict(zip(rule.labels, labels, strict=True)) for labels in members[:MOST_LISTED]]
