"""Texts of rules: bounds, values and alerts, and the detail of notifications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deltaworks.rules.evaluation import RuleEvaluation, Series, minute_text
from deltaworks.rules.open_alerts import AlertDecision, OpenAlert
from deltaworks.rules.stored_state import AlertEvent
from deltaworks.rules.subjects import FIRING, MAX_LISTED_LABEL_SETS, Labels, RuleDetail
from deltaworks.specs.alert_rule import BoundsSpec, RuleSpec

_BOUND_TEXTS: Mapping[str, str] = {
    "above": "above {0:g}",
    "below": "below {0:g}",
    "above_baseline": "above {0:g} times the baseline",
    "below_baseline": "below {0:g} times the baseline",
    "deviations": "{0:g} deviations away from it",
    "min_increase": "above it by {0:g}",
    "min_decrease": "below it by {0:g}",
}


def bounds_text(bounds: BoundsSpec) -> str:
    """Describes bounds, for example: above 1.1 times the baseline and above it by 20."""
    return " and ".join(_BOUND_TEXTS[name].format(value) for name, value in bounds.named_bounds.items())


def labels_text(rule: RuleSpec, labels: Labels) -> str:
    """Describes a label set, for example `cdn a, region eu`; `all` for a rule without labels."""
    pairs = (f"{name} {'unknown' if value is None else value}" for name, value in zip(rule.labels, labels, strict=True))
    return ", ".join(pairs) or "all"


def format_number(value: float | None) -> str:
    """Formats a value with four significant digits."""
    return "?" if value is None else f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def alert_event(
    decision: AlertDecision,
    evaluation: RuleEvaluation,
    *,
    reads: Sequence[str],
    data_until: str,
    annotations: Sequence[str] = (),
) -> AlertEvent:
    """Builds the alert event of a decision."""
    alert, rule = decision.alert, evaluation.rule
    title = rule.description.rstrip(".") or rule.name
    detail = RuleDetail(
        pipeline=alert.episode.partition(".")[0],
        rule=rule.name,
        title=title,
        episode=alert.episode,
        labels=dict(alert.labels),
    )
    if decision.kind == "resolve":
        over = f"{rule.name} resolved for {_describe_members(alert)} at {minute_text(decision.minute)}."
        return AlertEvent(
            kind="resolve", cause=FIRING, subject=alert.subject, severity=None, summary=over, detail=detail.as_dict()
        )
    worst_labels, worst = _worst_series(evaluation, alert)
    episode = evaluation.firing[worst_labels]
    last, baseline = worst.last_row, worst.baseline
    value = last.value if last is not None and last.value is not None else episode.worst
    detail = RuleDetail(
        pipeline=detail.pipeline,
        rule=rule.name,
        title=title,
        episode=alert.episode,
        labels=dict(alert.labels),
        label_sets=_listed_label_sets(rule, evaluation, alert),
        label_sets_count=len(alert.members),
        minute=minute_text(decision.minute),
        began=minute_text(episode.began),
        fired=minute_text(episode.fired),
        value=value,
        samples=None if last is None else last.samples,
        baseline=None if baseline is None else baseline.value,
        spread=None if baseline is None else baseline.spread,
        bounds=bounds_text(rule.fire),
        reads=list(reads),
        data_until=data_until,
        annotations=list(annotations),
        next_step=rule.runbook,
    )
    return AlertEvent(
        kind="raise",
        cause=FIRING,
        subject=alert.subject,
        severity=rule.severity,
        summary=_summary(rule, alert, worst_labels, detail),
        detail=detail.as_dict(),
    )


def _summary(rule: RuleSpec, alert: OpenAlert, worst: Labels, detail: RuleDetail) -> str:
    compared = "" if detail.baseline is None else f", baseline {format_number(detail.baseline)}"
    worst_text = f" of {labels_text(rule, worst)}" if alert.is_storm else ""
    value = format_number(detail.value)
    sentences = [
        f"{detail.title}: {_describe_members(alert)} at {value}{worst_text}{compared}; "
        f"the rule fires when {detail.bounds} for {rule.for_minutes} minutes.",
        f"Out of bounds since {detail.began}; newest data of {', '.join(detail.reads)}: {detail.data_until or '?'}.",
    ]
    if detail.annotations:
        sentences.append(f"Changes before: {'; '.join(detail.annotations)}.")
    if rule.runbook:
        sentences.append(rule.runbook)
    return " ".join(sentences)


def _describe_members(alert: OpenAlert) -> str:
    if not alert.is_storm:
        return _describe_labels(alert.labels)
    within = f" of {_describe_labels(alert.labels)}" if alert.labels else ""
    return f"{len(alert.members)} label sets{within}"


def _describe_labels(labels: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {'unknown' if value is None else value}" for name, value in labels.items()) or "all"


def _worst_series(evaluation: RuleEvaluation, alert: OpenAlert) -> tuple[Labels, Series]:
    """Returns the firing label set of the alert with the most extreme value."""
    sign = evaluation.rule.fire.sign
    members = sorted(
        (labels for labels in alert.members if labels in evaluation.firing),
        key=lambda labels: [text or "" for text in labels],
    )

    def extreme(labels: Labels) -> float:
        last = evaluation.series[labels].last_row
        return sign * last.value if last is not None and last.value is not None else float("-inf")

    labels = max(members, key=extreme)
    return labels, evaluation.series[labels]


def _listed_label_sets(rule: RuleSpec, evaluation: RuleEvaluation, alert: OpenAlert) -> list[dict[str, str | None]]:
    members = sorted(alert.members & evaluation.firing.keys(), key=lambda labels: [text or "" for text in labels])
    return [dict(zip(rule.labels, labels, strict=True)) for labels in members[:MAX_LISTED_LABEL_SETS]]
