"""Alerts of a rule itself: it is unknown how its figures are, its SQL fails, or it has too many label sets.

Each is told when it begins and when it is over, by the same outbox as what fires.
"""

from __future__ import annotations

import datetime as dt

from deltaworks.rules.inputs import Reach
from deltaworks.rules.judge import Judging
from deltaworks.rules.minutes import minute_text
from deltaworks.rules.states import TellingRecord
from deltaworks.rules.subjects import BROKEN, MOST_LISTED, TOO_WIDE, UNKNOWN, Labels, RuleDetail, subject_of
from deltaworks.rules.wording import labels_text
from deltaworks.specs.business_alert import MAX_LABEL_SETS, RuleSpec


class Conditions:
    """The open alerts of one rule itself: by cause, since when."""

    def __init__(self, pipeline: str, rule: RuleSpec, open_: dict[str, str]) -> None:
        self.open = open_
        self._pipeline = pipeline
        self._rule = rule

    def unknown(self, judging: Judging, reach: Reach, now: dt.datetime) -> list[TellingRecord]:
        """Whether anything says how it is: the data end too early, or label sets that were judged have no more rows.

        It counts after the rule's `for_minutes`, as what fires does.
        """
        rule = self._rule
        newest = reach.newest_at
        bound = dt.timedelta(seconds=rule.unknown_after_seconds, minutes=rule.for_minutes)
        if newest is None or now - newest > bound:
            until = "there are none" if newest is None else f"they end at {newest:%Y-%m-%d %H:%M}Z"
            text = f"Nobody knows how {rule.name} is: of {', '.join(reach.kinds)} {until}."
            return self._begun(UNKNOWN, text, now)
        silent = self._silent(judging)
        if not silent:
            return self._over(UNKNOWN, f"{rule.name} is judged again: its data are there.")
        shown = "; ".join(labels_text(rule, labels) for labels in silent[:3])
        more = f" and {len(silent) - 3} more" if len(silent) > 3 else ""
        return self._begun(
            UNKNOWN, f"Of {shown}{more} there are no rows any more: {rule.name} does not know.", now, silent
        )

    def skipped(self, last: int | None, skipped: int, now: dt.datetime) -> list[TellingRecord]:
        """Minutes that were not judged, since nobody was there for too long."""
        since = "?" if last is None else minute_text(last)
        text = f"{self._rule.name} was not judged from {since} to {minute_text(skipped)}: nobody was there to judge it."
        return self._begun(UNKNOWN, text, now)

    def broken(self, problem: str, now: dt.datetime) -> list[TellingRecord]:
        """Its SQL fails."""
        return self._begun(BROKEN, problem, now)

    def works(self, now: dt.datetime) -> list[TellingRecord]:
        """Its SQL was answered."""
        return self._over(BROKEN, f"{self._rule.name} is judged again.")

    def too_wide(self, width: int, now: dt.datetime) -> list[TellingRecord]:
        """So many label sets were there in one minute; 0 where they were not too many."""
        if not width:
            return self._over(TOO_WIDE, f"{self._rule.name} has {MAX_LABEL_SETS:,} label sets at most.")
        text = (
            f"{self._rule.name} had {width:,} label sets in one minute, and {MAX_LABEL_SETS:,} are judged: those with "
            "the most samples. Name fewer labels, or leave out what is small."
        )
        return self._begun(TOO_WIDE, text, now)

    def end_all(self) -> list[TellingRecord]:
        """End what is open: the rule is gone."""
        return [record for cause in list(self.open) for record in self._over(cause, f"{self._rule.name} is gone.")]

    def _silent(self, judging: Judging) -> list[Labels]:
        if self._rule.no_data != "unknown" or judging.last_minute is None:
            return []
        least = self._rule.for_steps * self._rule.step_minutes
        return [
            labels
            for labels, figure in judging.figures.items()
            if figure.state.unknown
            and figure.last is not None
            and figure.last.value is not None
            and judging.last_minute - figure.since + self._rule.step_minutes >= least
        ]

    def _begun(
        self, cause: str, summary: str, now: dt.datetime, label_sets: list[Labels] | None = None
    ) -> list[TellingRecord]:
        if cause in self.open:
            return []
        self.open[cause] = f"{now.astimezone(dt.UTC):%Y-%m-%dT%H:%M:%SZ}"
        listed = [dict(zip(self._rule.labels, labels, strict=True)) for labels in (label_sets or [])[:MOST_LISTED]]
        return [self._record("raise", cause, summary, listed, len(label_sets or ()))]

    def _over(self, cause: str, summary: str) -> list[TellingRecord]:
        if cause not in self.open:
            return []
        record = self._record("resolve", cause, summary, [], 0)
        del self.open[cause]
        return [record]

    def _record(
        self, kind: str, cause: str, summary: str, listed: list[dict[str, str | None]], count: int
    ) -> TellingRecord:
        subject = subject_of(self._pipeline, self._rule.name)
        detail = RuleDetail(
            pipeline=self._pipeline,
            rule=self._rule.name,
            episode=f"{subject}:{cause}@{self.open[cause]}",
            labels={},
            label_sets=listed,
            label_sets_count=count,
            next_step=self._rule.runbook,
        )
        return TellingRecord(
            kind="raise" if kind == "raise" else "resolve",
            cause=cause,
            subject=subject,
            severity=None,
            summary=summary,
            detail=detail.record(),
        )
