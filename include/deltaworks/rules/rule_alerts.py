"""Alerts of rules: delivers alert events from a rule's outbox, and raises alerts about a rule itself.

Each event is delivered once. An alert about a rule (it cannot be evaluated, its SQL fails, or it has too many label
sets) is raised when the problem begins and resolved when it ends, through the same outbox.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence

from deltaworks.alerts.raising import raise_alert, read_alert, resolve_alert
from deltaworks.control.objects import ObjectStore
from deltaworks.rules.evaluation import RuleEvaluation, minute_text
from deltaworks.rules.inputs import InputFreshness
from deltaworks.rules.messages import labels_text
from deltaworks.rules.stored_state import AlertEvent
from deltaworks.rules.subjects import (
    BROKEN,
    MAX_LISTED_LABEL_SETS,
    TOO_MANY_SERIES,
    UNKNOWN,
    Labels,
    RuleDetail,
    subject_of,
)
from deltaworks.specs.alert_rule import MAX_LABEL_SETS, RuleSpec


class RuleAlerts:
    """The open alerts about one rule, by cause, with their start times."""

    def __init__(self, pipeline: str, rule: RuleSpec, raised: dict[str, str]) -> None:
        self.raised = raised
        self._pipeline = pipeline
        self._rule = rule

    def check_unknown(
        self, evaluation: RuleEvaluation, freshness: InputFreshness, now: dt.datetime
    ) -> list[AlertEvent]:
        """Returns events that raise RULE_UNKNOWN if inputs are stale or label sets have no more rows, and otherwise
        resolve it.

        A problem must last for the rule's `for_minutes`.
        """
        rule = self._rule
        newest_at = freshness.newest_at
        bound = dt.timedelta(seconds=rule.unknown_after_seconds, minutes=rule.for_minutes)
        if newest_at is None or now - newest_at > bound:
            problem = _staleness(freshness.labels, newest_at)
            return self._raise(UNKNOWN, f"Rule {rule.name} cannot be evaluated: {problem}.", now)
        missing = self._missing_label_sets(evaluation)
        if not missing:
            return self._resolve(UNKNOWN, f"Rule {rule.name} is evaluated again: its data are up to date.")
        shown = "; ".join(labels_text(rule, labels) for labels in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        return self._raise(
            UNKNOWN, f"Rule {rule.name} cannot be evaluated for {shown}{more}: there are no new rows.", now, missing
        )

    def report_skipped(self, last: int | None, last_skipped: int, now: dt.datetime) -> list[AlertEvent]:
        """Returns events that raise RULE_UNKNOWN for minutes that were skipped after a long outage of the process."""
        since = "?" if last is None else minute_text(last)
        text = (
            f"Rule {self._rule.name} was not evaluated from {since} to {minute_text(last_skipped)}: "
            "the process that evaluates rules was not running."
        )
        return self._raise(UNKNOWN, text, now)

    def report_broken(self, problem: str, now: dt.datetime) -> list[AlertEvent]:
        """Returns events that raise RULE_BROKEN: the rule's SQL fails."""
        return self._raise(BROKEN, problem, now)

    def report_working(self, now: dt.datetime) -> list[AlertEvent]:
        """Returns events that resolve RULE_BROKEN: the rule's SQL succeeded."""
        return self._resolve(BROKEN, f"Rule {self._rule.name} is evaluated again.")

    def check_width(self, width: int, now: dt.datetime) -> list[AlertEvent]:
        """Returns events that raise RULE_TOO_MANY_SERIES for too many label sets in a minute, or resolve it for 0."""
        if not width:
            return self._resolve(
                TOO_MANY_SERIES, (f"Rule {self._rule.name} has no more than {MAX_LABEL_SETS:,} label sets again.")
            )
        text = (
            f"Rule {self._rule.name} has {width:,} label sets in one minute; only the {MAX_LABEL_SETS:,} with the "
            "most samples are evaluated. Declare fewer labels, or filter out small label sets."
        )
        return self._raise(TOO_MANY_SERIES, text, now)

    def resolve_all(self) -> list[AlertEvent]:
        """Returns events that resolve all open alerts of a removed rule."""
        return [
            record
            for cause in list(self.raised)
            for record in self._resolve(cause, (f"Rule {self._rule.name} was removed."))
        ]

    def _missing_label_sets(self, evaluation: RuleEvaluation) -> list[Labels]:
        if self._rule.no_data != "unknown" or evaluation.last_minute is None:
            return []
        min_minutes = self._rule.for_steps * self._rule.step_minutes
        return [
            labels
            for labels, figure in evaluation.series.items()
            if figure.state.unknown
            and figure.last_row is not None
            and figure.last_row.value is not None
            and evaluation.last_minute - figure.changed_minute + self._rule.step_minutes >= min_minutes
        ]

    def _raise(
        self, cause: str, summary: str, now: dt.datetime, label_sets: list[Labels] | None = None
    ) -> list[AlertEvent]:
        if cause in self.raised:
            return []
        self.raised[cause] = f"{now.astimezone(dt.UTC):%Y-%m-%dT%H:%M:%SZ}"
        listed = [
            dict(zip(self._rule.labels, labels, strict=True)) for labels in (label_sets or [])[:MAX_LISTED_LABEL_SETS]
        ]
        return [self._record("raise", cause, summary, listed, len(label_sets or ()))]

    def _resolve(self, cause: str, summary: str) -> list[AlertEvent]:
        if cause not in self.raised:
            return []
        record = self._record("resolve", cause, summary, [], 0)
        del self.raised[cause]
        return [record]

    def _record(
        self, kind: str, cause: str, summary: str, listed: list[dict[str, str | None]], count: int
    ) -> AlertEvent:
        subject = subject_of(self._pipeline, self._rule.name)
        detail = RuleDetail(
            pipeline=self._pipeline,
            rule=self._rule.name,
            episode=f"{subject}:{cause}@{self.raised[cause]}",
            labels={},
            label_sets=listed,
            label_sets_count=count,
            next_step=self._rule.runbook,
        )
        return AlertEvent(
            kind="raise" if kind == "raise" else "resolve",
            cause=cause,
            subject=subject,
            severity=None,
            summary=summary,
            detail=detail.as_dict(),
        )


def _staleness(tables: Sequence[str], newest_at: dt.datetime | None) -> str:
    """Describes which inputs are stale and since when."""
    names = f"table {tables[0]}" if len(tables) == 1 else f"tables {', '.join(tables)}"
    if newest_at is not None:
        return f"the newest rows of {names} are from {newest_at:%Y-%m-%d %H:%M}Z"
    return f"{names} has no rows yet" if len(tables) == 1 else f"at least one of the {names} has no rows yet"


def deliver(objects: ObjectStore, outbox: Iterable[AlertEvent]) -> None:
    """Raises and resolves alerts in order.

    May be repeated after a failure: an episode that was resolved before is not raised again.

    Raises:
        ConcurrencyError: ALERT_CONTENDED. The outbox is kept for a retry.
        TransientError: the control storage is unreachable. The outbox is kept for a retry.
    """
    for event in outbox:
        if event.kind == "resolve":
            resolve_alert(objects, cause=event.cause, subject=event.subject, summary=event.summary)
        elif not _was_resolved(objects, event):
            raise_alert(
                objects,
                cause=event.cause,
                subject=event.subject,
                summary=event.summary,
                severity=event.severity,
                detail=event.detail,
            )


def _was_resolved(objects: ObjectStore, event: AlertEvent) -> bool:
    stored = read_alert(objects, cause=event.cause, subject=event.subject)
    if stored is None or stored.state.is_open:
        return False
    return stored.detail.get("episode") == event.detail.get("episode")
