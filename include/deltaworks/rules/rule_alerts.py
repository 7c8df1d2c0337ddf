"""Alerts of rules: delivers alert events from a rule's outbox, and raises alerts about a rule itself.

Each event is delivered once. An alert about a rule (it cannot be evaluated, its SQL fails, or it has too many label
sets) is raised when the problem begins and resolved when it ends, through the same outbox.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence

from deltaworks.alerts.raising import raise_alert, read_alert, resolve_alert
from deltaworks.control.health.limits import format_duration
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
    """The open alerts about one rule, by cause, with their start times and their last texts."""

    def __init__(self, pipeline: str, rule: RuleSpec, raised: dict[str, str], texts: dict[str, str]) -> None:
        self.raised = raised
        self.texts = texts
        self._pipeline = pipeline
        self._rule = rule

    def check_unknown(
        self, evaluation: RuleEvaluation, freshness: InputFreshness, now: dt.datetime
    ) -> list[AlertEvent]:
        """Returns events that raise RULE_UNKNOWN if label sets have no more rows, and otherwise resolve it."""
        rule, missing = self._rule, self._missing_label_sets(evaluation)
        if not missing:
            return self._resolve(UNKNOWN, f"{rule.name} is judged again: its data are up to date.")
        shown = "; ".join(labels_text(rule, labels) for labels in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        return self._raise(
            UNKNOWN,
            f"{rule.name} cannot be judged for {shown}{more}: {_listed(freshness.labels)} has no new rows of them.",
            now,
            missing,
            next_step="Check their senders. If they may come and go, declare `no_data: hold` for the rule.",
        )

    def report_waiting(self, problem: str, freshness: InputFreshness, now: dt.datetime) -> list[AlertEvent]:
        """Returns events that raise RULE_UNKNOWN for a rule whose inputs no longer get rows."""
        return self._raise(
            UNKNOWN,
            f"{self._rule.name} cannot be judged: {problem}.",
            now,
            next_step=(
                f"Find out why {_listed(freshness.oldest)} gets no rows: `deltaworks status` shows the stream, and the "
                "console's page of gold the builds. If no data are expected, there is nothing to do."
            ),
        )

    def report_skipped(self, last: int | None, last_skipped: int, now: dt.datetime) -> list[AlertEvent]:
        """Returns events that raise RULE_UNKNOWN for minutes that were skipped after a long outage of the process."""
        since = "?" if last is None else minute_text(last)
        text = (
            f"{self._rule.name} was not evaluated from {since} to {minute_text(last_skipped)}: "
            "the process that evaluates rules was not running."
        )
        return self._raise(
            UNKNOWN,
            text,
            now,
            next_step="See the log of the DAG `rules` for the reason. The rule is judged again from now on.",
        )

    def report_broken(self, problem: str, now: dt.datetime, *, next_step: str = "") -> list[AlertEvent]:
        """Returns events that raise RULE_BROKEN: the rule's SQL fails, or a data file, whose repair is `next_step`."""
        fix = "Fix the SQL of the rule, then run `deltaworks pipelines check`."
        summary = f"{problem} Next: {next_step}" if next_step else problem
        return self._raise(BROKEN, summary, now, next_step=next_step or fix)

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
            "most samples are evaluated."
        )
        return self._raise(
            TOO_MANY_SERIES, text, now, next_step="Declare fewer labels, or filter out small label sets in the SQL."
        )

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
        self, cause: str, summary: str, now: dt.datetime, label_sets: list[Labels] | None = None, *, next_step: str
    ) -> list[AlertEvent]:
        if self.texts.get(cause) == summary:
            return []
        # An alert that is open gets its new text; its start stays.
        self.raised.setdefault(cause, f"{now.astimezone(dt.UTC):%Y-%m-%dT%H:%M:%SZ}")
        self.texts[cause] = summary
        listed = [
            dict(zip(self._rule.labels, labels, strict=True)) for labels in (label_sets or [])[:MAX_LISTED_LABEL_SETS]
        ]
        return [self._record("raise", cause, summary, listed, len(label_sets or ()), next_step=next_step)]

    def _resolve(self, cause: str, summary: str) -> list[AlertEvent]:
        if cause not in self.raised:
            return []
        record = self._record("resolve", cause, summary, [], 0, next_step="")
        del self.raised[cause]
        self.texts.pop(cause, None)
        return [record]

    def _record(
        self, kind: str, cause: str, summary: str, listed: list[dict[str, str | None]], count: int, *, next_step: str
    ) -> AlertEvent:
        subject = subject_of(self._pipeline, self._rule.name)
        detail = RuleDetail(
            pipeline=self._pipeline,
            rule=self._rule.name,
            title=self._rule.description.rstrip(".") or self._rule.name,
            episode=f"{subject}:{cause}@{self.raised[cause]}",
            labels={},
            label_sets=listed,
            label_sets_count=count,
            next_step=next_step,
        )
        return AlertEvent(
            kind="raise" if kind == "raise" else "resolve",
            cause=cause,
            subject=subject,
            severity=None,
            summary=summary,
            detail=detail.as_dict(),
        )


def unknown_after(rule: RuleSpec) -> dt.timedelta:
    """Returns the age of the newest data from which nothing can be said of now: the rule's bound and `for_minutes`."""
    return dt.timedelta(seconds=rule.unknown_after_seconds, minutes=rule.for_minutes)


def waiting_problem(rule: RuleSpec, freshness: InputFreshness) -> str:
    """Describes which inputs a rule waits for."""
    tables = _listed(freshness.oldest or freshness.labels)
    if freshness.missing:
        return f"{tables} does not exist yet" if len(freshness.missing) == 1 else f"{tables} do not exist yet"
    if freshness.newest_at is None:
        return f"{tables} has no rows" if len(freshness.oldest) == 1 else f"{tables} have no rows"
    limit = format_duration(unknown_after(rule).total_seconds())
    return f"{tables} has no rows newer than {freshness.newest_at:%Y-%m-%d %H:%M}Z (limit {limit})"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


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
