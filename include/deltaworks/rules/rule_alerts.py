"""Alerts of a rule itself: it is unknown how its figures are, its SQL fails, or it has too many label sets.

Each is told when it begins and when it is over, by the same outbox as what fires.
"""

from __future__ import annotations

import datetime as dt

from deltaworks.rules.evaluation import RuleEvaluation
from deltaworks.rules.inputs import InputFreshness
from deltaworks.rules.messages import labels_text
from deltaworks.rules.minutes import minute_text
from deltaworks.rules.stored_state import AlertEvent
from deltaworks.rules.subjects import BROKEN, MAX_LISTED_LABEL_SETS, TOO_WIDE, UNKNOWN, Labels, RuleDetail, subject_of
from deltaworks.specs.alert_rule import MAX_LABEL_SETS, RuleSpec


class RuleAlerts:
    """The open alerts of one rule itself: by cause, since when."""

    def __init__(self, pipeline: str, rule: RuleSpec, raised: dict[str, str]) -> None:
        self.raised = raised
        self._pipeline = pipeline
        self._rule = rule

    def check_unknown(
        self, evaluation: RuleEvaluation, freshness: InputFreshness, now: dt.datetime
    ) -> list[AlertEvent]:
        """Whether anything says how it is: the data end too early, or label sets that were judged have no more rows.

        It counts after the rule's `for_minutes`, as what fires does.
        """
        rule = self._rule
        newest_at = freshness.newest_at
        bound = dt.timedelta(seconds=rule.unknown_after_seconds, minutes=rule.for_minutes)
        if newest_at is None or now - newest_at > bound:
            until = "there are none" if newest_at is None else f"they end at {newest_at:%Y-%m-%d %H:%M}Z"
            text = f"Nobody knows how {rule.name} is: of {', '.join(freshness.labels)} {until}."
            return self._raise(UNKNOWN, text, now)
        missing = self._missing_label_sets(evaluation)
        if not missing:
            return self._resolve(UNKNOWN, f"{rule.name} is judged again: its data are there.")
        shown = "; ".join(labels_text(rule, labels) for labels in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        return self._raise(
            UNKNOWN, f"Of {shown}{more} there are no rows any more: {rule.name} does not know.", now, missing
        )

    def report_skipped(self, last: int | None, last_skipped: int, now: dt.datetime) -> list[AlertEvent]:
        """Minutes that were not judged, since nobody was there for too long."""
        since = "?" if last is None else minute_text(last)
        text = f"{self._rule.name} was not judged from {since} to {minute_text(last_skipped)}: nobody was there to judge it."
        return self._raise(UNKNOWN, text, now)

    def report_broken(self, problem: str, now: dt.datetime) -> list[AlertEvent]:
        """Its SQL fails."""
        return self._raise(BROKEN, problem, now)

    def report_working(self, now: dt.datetime) -> list[AlertEvent]:
        """Its SQL was answered."""
        return self._resolve(BROKEN, f"{self._rule.name} is judged again.")

    def check_width(self, width: int, now: dt.datetime) -> list[AlertEvent]:
        """So many label sets were there in one minute; 0 where they were not too many."""
        if not width:
            return self._resolve(TOO_WIDE, f"{self._rule.name} has {MAX_LABEL_SETS:,} label sets at most.")
        text = (
            f"{self._rule.name} had {width:,} label sets in one minute, and {MAX_LABEL_SETS:,} are judged: those with "
            "the most samples. Name fewer labels, or leave out what is small."
        )
        return self._raise(TOO_WIDE, text, now)

    def resolve_all(self) -> list[AlertEvent]:
        """End what is open: the rule is gone."""
        return [record for cause in list(self.raised) for record in self._resolve(cause, f"{self._rule.name} is gone.")]

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
