"""One remediation: takes up notices, calls once, verifies, and takes back what does not help.

What it does is on record before it does it, so a notice that is delivered twice is taken up once, and a process that
dies is followed by one that knows whether a call was begun. Such a call is not made again: the address is asked for the
weights. A step that cannot be told apart from no step is told to people.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from deltaworks.alerts.notice import Notice
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.remediation import RemediationRecord, RemediationRecords, RemediationState
from deltaworks.errors import ContractError, TransientError
from deltaworks.remediation.decision import Plan, Refusal, Refused, Situation, are_same, decide, refusal_before_weights
from deltaworks.remediation.notices import RuleState, concerns, rule_state, targets_of
from deltaworks.remediation.telling import Telling
from deltaworks.remediation.traffic import Traffic
from deltaworks.specs.remediation import RemediationSpec

log = logging.getLogger(__name__)
#: A reply that was lost: how often, and for how long between, the weights are asked for before people are told.
ASKS = 4
ASK_SECONDS = 2.0
#: For how long an address that tells nothing is asked again, before people are told.
_PATIENCE = timedelta(minutes=15)
#: Longer than a day, which bounds are about, and than any verification.
_LATELY = timedelta(days=7)


class Remediator:
    """One remediation. For one thread.

    Args:
        clock: the time now. pause: waits so many seconds.
    """

    def __init__(
        self,
        spec: RemediationSpec,
        objects: ObjectStore,
        *,
        traffic: Traffic | None = None,
        clock: Callable[[], datetime] = utc_now,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._spec, self._objects = spec, objects
        self._records = RemediationRecords(objects)
        self._traffic = traffic or Traffic(spec.do)
        self._telling = Telling(spec, objects)
        self._clock, self._pause = clock, pause

    def take(self, notice: Notice) -> RemediationRecord | None:
        """Take up a notice; None where it does not concern this remediation. Idempotent by the notice's id.

        Raises:
            TransientError: the storage or the address does not answer, and nothing was begun: give the message back.
            ContractError: REMEDIATION_UNREADABLE; FencedError: REMEDIATION_TAKEN_OVER.
        """
        if not concerns(self._spec, notice):
            return None
        standing = self._records.read(notice.id)
        if standing is not None:
            return standing
        rule = rule_state(self._objects, self._spec, notice.subject)
        decision = self._decide(notice, rule)
        if isinstance(decision, Refused) and decision.reason is Refusal.PING_PONG:
            # Before the notice is taken up: whoever dies in between is held all the same.
            self.hold(by=f"remediation {self._spec.name}", reason=decision.text)
        record = self._record(notice, rule, decision)
        if not self._records.create(record):
            return self._records.read(notice.id)
        self._telling.step(record)
        return self._call(record) if record.state == "planned" else record

    def go_on(self) -> None:
        """Go on with what is under way: calls that were begun, shifts to be verified. Raises what `take` raises."""
        for record in self._recent():
            if record.state == "planned":
                self._call(record)
            elif record.state == "called":
                self._verify(record)

    def hold(self, *, by: str, reason: str) -> None:
        """Plan nothing more until a person lets it go on."""
        self._records.hold(self._spec.name, by=by, reason=reason)
        self._telling.held(reason)

    def _decide(self, notice: Notice, rule: RuleState) -> Plan | Refused:
        detail = rule.firing.detail if rule.firing is not None else notice.detail
        situation = Situation(
            now=self._clock(),
            at=parse_iso(notice.at),
            firing=rule.firing is not None,
            sources=frozenset(targets_of(notice.subject, detail, self._spec.targets)),
            sick=rule.sick,
            held=self._records.hold_reason(self._spec.name),
            records=tuple(self._recent()),
            weights={},
        )
        refused = refusal_before_weights(self._spec, situation)
        if refused is not None:
            return refused
        try:
            weights = self._traffic.weights()
        except ContractError as error:
            return Refused(Refusal.WEIGHTS_UNFIT, error.message)
        return decide(self._spec, dataclasses.replace(situation, weights=weights))

    def _record(self, notice: Notice, rule: RuleState, decision: Plan | Refused) -> RemediationRecord:
        state: RemediationState = "dry_run" if self._spec.dry_run else "planned"
        record = RemediationRecord(
            remediation=self._spec.name,
            notification=notice.id,
            subject=notice.subject,
            state=state,
            at=self._now(),
            value=rule.value,
        )
        if isinstance(decision, Refused):
            return record.replace(state="refused", ended_at=record.at, reason=f"{decision.reason}: {decision.text}")
        return record.replace(
            source=decision.source,
            target=decision.target,
            before=dict(decision.before),
            after=dict(decision.after),
            ended_at=record.at if state == "dry_run" else None,
        )

    def _call(self, record: RemediationRecord) -> RemediationRecord:
        """Move the weights as planned, once."""
        if record.attempted_at is None:
            record = self._records.replace(record, record.replace(attempted_at=self._now()))
            try:
                self._traffic.shift(
                    record.after, call_id=record.notification, source=record.source, target=record.target
                )
            except TransientError as error:
                log.warning("notice=%s the reply was lost: %s", record.notification, error)
            except ContractError as error:
                return self._end(record, "failed", f"nothing was moved: {error.message}")
            else:
                return self._called(record)
        return self._ask(record, intended=record.after, since=record.attempted_at, reached=self._called)

    def _called(self, record: RemediationRecord) -> RemediationRecord:
        record = self._records.replace(record, record.replace(state="called", called_at=self._now()))
        self._telling.step(record)
        return record

    def _ask(
        self,
        record: RemediationRecord,
        *,
        intended: dict[str, float],
        since: str | None,
        reached: Callable[[RemediationRecord], RemediationRecord],
    ) -> RemediationRecord:
        """Ask for the weights where a reply was lost: are they the intended ones? Nothing is called again."""
        weights: dict[str, float] | None = None
        for attempt in range(ASKS):
            if attempt:
                self._pause(ASK_SECONDS)
            try:
                weights = self._traffic.weights()
            except (TransientError, ContractError) as error:
                log.warning("notice=%s the weights are not told: %s", record.notification, error)
                continue
            if are_same(weights, intended):
                return reached(record)
        begun = parse_iso(since)
        if weights is None and begun is not None and self._clock() - begun < _PATIENCE:
            return record
        state = "are not told" if weights is None else f"are {weights}"
        return self._end(
            record,
            "failed",
            f"the reply to a call was lost, and the weights {state}, not {intended}; nothing is repeated",
        )

    def _verify(self, record: RemediationRecord) -> RemediationRecord:
        """Look whether a shift has helped, once it is time to."""
        if record.rollback_attempted_at is not None:
            return self._ask(record, intended=record.before, since=record.rollback_attempted_at, reached=self._back)
        called = parse_iso(record.called_at)
        waited = self._clock() - called if called is not None else timedelta.max
        due = timedelta(minutes=self._spec.verify.after_minutes)
        rule = rule_state(self._objects, self._spec, record.subject)
        if record.target in rule.sick:
            return self._take_back(record, f"the target is worse: {rule.sick[record.target]}")
        if waited < due:
            return record
        if rule.firing is not None:
            return self._compare(record, rule)
        if record.source not in rule.sick:
            return self._end(record, "verified", "the alert is over")
        # Of what is unknown nothing can be said yet; for how long is bounded.
        return record if waited < 2 * due else self._take_back(record, rule.sick[record.source])

    def _compare(self, record: RemediationRecord, rule: RuleState) -> RemediationRecord:
        """The alert is still open: is its figure better by what is declared?"""
        improved, least = _improvement(record.value, rule), self._spec.verify.improves
        if improved is None:
            return self._take_back(record, "the figure cannot be compared, and the alert is still open")
        if improved < least:
            return self._take_back(record, f"the figure is better by {improved:.1%}, and {least:.1%} was to be reached")
        return self._end(record, "verified", f"the figure is better by {improved:.1%}")

    def _take_back(self, record: RemediationRecord, why: str) -> RemediationRecord:
        """Put the weights back to what they were, unless somebody else has changed them since."""
        weights = self._traffic.weights()
        if not are_same(weights, record.after):
            return self._end(
                record, "failed", f"{why}; not taken back, since somebody has set the weights to {weights}"
            )
        record = self._records.replace(record, record.replace(back_attempted_at=self._now(), reason=why))
        try:
            self._traffic.shift(
                record.before, call_id=f"{record.notification}-back", source=record.target, target=record.source
            )
        except TransientError as error:
            log.warning("notice=%s the reply to taking back was lost: %s", record.notification, error)
            return self._ask(record, intended=record.before, since=record.rollback_attempted_at, reached=self._back)
        except ContractError as error:
            return self._end(record, "failed", f"{why}; it could not be taken back: {error.message}")
        return self._back(record)

    def _back(self, record: RemediationRecord) -> RemediationRecord:
        return self._end(record, "rolled_back", record.reason)

    def _end(self, record: RemediationRecord, state: RemediationState, reason: str) -> RemediationRecord:
        after = record.replace(state=state, ended_at=self._now(), reason=reason)
        record = self._records.replace(record, after)
        self._telling.step(record)
        return record

    def _recent(self) -> Iterator[RemediationRecord]:
        """What it did lately: all that bounds count, and all that can be under way."""
        return self._records.all(self._spec.name, since=self._clock() - _LATELY)

    def _now(self) -> str:
        return self._clock().isoformat(timespec="milliseconds")


def _improvement(before: float | None, rule: RuleState) -> float | None:
    """By which share the figure is nearer to its baseline than it was; None where it cannot be told."""
    now = rule.value
    if before is None or now is None or before == 0:
        return None
    baseline = rule.firing.detail.get("baseline") if rule.firing is not None else None
    low_is_bad = isinstance(baseline, int | float) and before < baseline
    return (now - before if low_is_bad else before - now) / abs(before)
