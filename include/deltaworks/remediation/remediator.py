"""One remediation: handles notifications, shifts traffic with a single call, verifies the effect, and rolls back.

Each action is recorded before it is done. So a notification that is delivered twice is handled once, and after a crash
the record shows whether a call was started. A started call is not repeated: after a lost reply the weights may have
changed, so they are read instead. If the outcome stays unknown, an operator is alerted.

The traffic address returns weights by GET and sets them by POST, identified by the notification's id:

    GET  → {"weights": {"a": 0.6, "b": 0.4}}
    POST ← {"id": …, "weights": {"a": 0.4, "b": 0.6}, "from": "a", "to": "b"}, header Idempotency-Key: the same id
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from deltaworks.alerts.notification import Notification
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.remediation import RemediationRecord, RemediationRecords, RemediationState
from deltaworks.errors import ContractError, TransientError
from deltaworks.remediation.decision import (
    Plan,
    Refusal,
    RefusalReason,
    Situation,
    decide,
    early_refusal,
    weights_equal,
)
from deltaworks.remediation.notifications import RuleAlertState, StepNotifier, is_relevant, read_rule_state, targets_of
from deltaworks.specs.base import resolve_text
from deltaworks.specs.environment_sections import RemediationSpec, TrafficWebhookSpec

_FIRST_REDIRECT_STATUS, _FIRST_SERVER_ERROR_STATUS = 300, 500
_RETRYABLE_STATUSES = (408, 425, 429)


class TrafficClient:
    """Client of one traffic address. Errors do not contain the address, since it may be a secret."""

    def __init__(self, spec: TrafficWebhookSpec) -> None:
        self._spec = spec

    def weights(self) -> dict[str, float]:
        """Returns the current weights by target.

        Raises:
            TransientError: TRAFFIC_UNREACHABLE. ContractError: TRAFFIC_REFUSED, the response is invalid.
        """
        content = self._request("GET", None, {})
        weights = content.get("weights") if isinstance(content, dict) else None
        if not isinstance(weights, dict) or not all(_is_weight(value) for value in weights.values()):
            raise _refused_error('the response has no weights, such as {"weights": {"a": 0.5, "b": 0.5}}')
        return {str(name): float(value) for name, value in weights.items()}

    def shift(self, weights: Mapping[str, float], *, call_id: str, source: str, target: str) -> None:
        """Sets the weights with a single call.

        Raises:
            TransientError: TRAFFIC_UNREACHABLE, the outcome is unknown. ContractError: TRAFFIC_REFUSED, nothing
                changed.
        """
        body = {"id": call_id, "weights": dict(weights), "from": source, "to": target}
        self._request("POST", body, {"Idempotency-Key": call_id})

    def _request(self, method: str, body: Any, headers: dict[str, str]) -> Any:
        import httpx2

        if self._spec.token is not None:
            headers = {**headers, "Authorization": f"Bearer {self._spec.token.resolve()}"}
        try:
            answer = httpx2.request(
                method, resolve_text(self._spec.url), json=body, headers=headers, timeout=self._spec.timeout_seconds
            )
        except httpx2.InvalidURL as error:
            raise _refused_error("its URL is invalid") from error
        except httpx2.HTTPError as error:
            raise _unreachable_error(type(error).__name__) from error
        if answer.status_code >= _FIRST_SERVER_ERROR_STATUS or answer.status_code in _RETRYABLE_STATUSES:
            raise _unreachable_error(f"it answered {answer.status_code}")
        if answer.status_code >= _FIRST_REDIRECT_STATUS:
            raise _refused_error(f"it answered {answer.status_code}")
        try:
            return answer.json() if method == "GET" else None
        except ValueError as error:
            raise _refused_error("the response is not JSON") from error


def _is_weight(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _unreachable_error(problem: str) -> TransientError:
    return TransientError("TRAFFIC_UNREACHABLE", f"The traffic address did not respond: {problem}.")


def _refused_error(problem: str) -> ContractError:
    return ContractError("TRAFFIC_REFUSED", f"The traffic address rejected the request: {problem}.")


log = logging.getLogger(__name__)
#: Number and interval of reads of the weights after a lost reply, before an operator is alerted.
WEIGHT_READ_ATTEMPTS = 4
WEIGHT_READ_INTERVAL_SECONDS = 2.0
#: Time for which an unreachable traffic address is retried before an operator is alerted.
_MAX_UNREADABLE_TIME = timedelta(minutes=15)
#: Age of records to read, longer than the window of the daily limit and any verification.
_RECORD_WINDOW = timedelta(days=7)


class Remediator:
    """One remediation. Not thread-safe.

    Args:
        clock: returns the current time.
        pause: sleeps for a number of seconds.
    """

    def __init__(
        self,
        spec: RemediationSpec,
        objects: ObjectStore,
        *,
        traffic: TrafficClient | None = None,
        clock: Callable[[], datetime] = utc_now,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._spec, self._objects = spec, objects
        self._records = RemediationRecords(objects)
        self._traffic = traffic or TrafficClient(spec.action)
        self._notifier = StepNotifier(spec, objects)
        self._clock, self._pause = clock, pause

    def handle_notification(self, notification: Notification) -> RemediationRecord | None:
        """Decides on a notification and acts on it. Idempotent by the notification's id.

        Returns the record of the action, or None if the notification does not concern this remediation.

        Raises:
            TransientError: the storage or the address does not answer, and no action was started: return the message to
                the queue.
            ContractError: REMEDIATION_UNREADABLE; FencedError: REMEDIATION_TAKEN_OVER.
        """
        if not is_relevant(self._spec, notification):
            return None
        existing = self._records.read(notification.id)
        if existing is not None:
            return existing
        rule_alerts = read_rule_state(self._objects, self._spec, notification.subject)
        decision = self._decide(notification, rule_alerts)
        if isinstance(decision, Refusal) and decision.reason is RefusalReason.PING_PONG:
            # The hold is stored before the notification is recorded, so that a crash in between keeps the hold.
            self.hold(by=f"remediation {self._spec.name}", reason=decision.text)
        record = self._new_record(notification, rule_alerts, decision)
        if not self._records.create(record):
            return self._records.read(notification.id)
        self._notifier.notify_step(record)
        return self._shift_weights(record) if record.state == "planned" else record

    def resume_pending(self) -> None:
        """Continues started calls and pending verifications. Raises the same errors as `handle_notification`."""
        for record in self._recent_records():
            if record.state == "planned":
                self._shift_weights(record)
            elif record.state == "called":
                self._verify_shift(record)

    def hold(self, *, by: str, reason: str) -> None:
        """Puts the remediation on hold: it plans no actions until an operator resumes it."""
        self._records.hold(self._spec.name, by=by, reason=reason)
        self._notifier.notify_hold(reason)

    def _decide(self, notification: Notification, rule: RuleAlertState) -> Plan | Refusal:
        detail = rule.firing_alert.detail if rule.firing_alert is not None else notification.detail
        situation = Situation(
            now=self._clock(),
            notification_at=parse_iso(notification.at),
            is_firing=rule.firing_alert is not None,
            sources=frozenset(targets_of(self._spec, notification.subject, detail)),
            unhealthy=rule.unhealthy,
            hold_reason=self._records.hold_reason(self._spec.name),
            records=tuple(self._recent_records()),
            weights={},
        )
        refusal = early_refusal(self._spec, situation)
        if refusal is not None:
            return refusal
        try:
            weights = self._traffic.weights()
        except ContractError as error:
            return Refusal(RefusalReason.INVALID_WEIGHTS, error.message)
        return decide(self._spec, dataclasses.replace(situation, weights=weights))

    def _new_record(
        self, notification: Notification, rule: RuleAlertState, decision: Plan | Refusal
    ) -> RemediationRecord:
        state: RemediationState = "dry_run" if self._spec.dry_run else "planned"
        record = RemediationRecord(
            remediation=self._spec.name,
            notification=notification.id,
            subject=notification.subject,
            state=state,
            at=self._now(),
            value=rule.value,
        )
        if isinstance(decision, Refusal):
            return record.replace(state="refused", ended_at=record.at, reason=f"{decision.reason}: {decision.text}")
        return record.replace(
            source=decision.source,
            target=decision.target,
            before=dict(decision.before),
            after=dict(decision.after),
            ended_at=record.at if state == "dry_run" else None,
        )

    def _shift_weights(self, record: RemediationRecord) -> RemediationRecord:
        """Shifts the weights as planned, with a single call."""
        if record.attempted_at is None:
            record = self._records.replace(record, record.replace(attempted_at=self._now()))
            try:
                self._traffic.shift(
                    record.after, call_id=record.notification, source=record.source, target=record.target
                )
            except TransientError as error:
                log.warning("notification=%s the reply was lost: %s", record.notification, error)
            except ContractError as error:
                return self._end(record, "failed", f"no weight was shifted: {error.message}")
            else:
                return self._mark_called(record)
        return self._confirm_weights(
            record, intended=record.after, attempted_at=record.attempted_at, on_confirmed=self._mark_called
        )

    def _mark_called(self, record: RemediationRecord) -> RemediationRecord:
        record = self._records.replace(record, record.replace(state="called", called_at=self._now()))
        self._notifier.notify_step(record)
        return record

    def _confirm_weights(
        self,
        record: RemediationRecord,
        *,
        intended: dict[str, float],
        attempted_at: str | None,
        on_confirmed: Callable[[RemediationRecord], RemediationRecord],
    ) -> RemediationRecord:
        """After a lost reply, reads the weights and compares them with the intended ones. Does not repeat the call."""
        weights: dict[str, float] | None = None
        for attempt in range(WEIGHT_READ_ATTEMPTS):
            if attempt:
                self._pause(WEIGHT_READ_INTERVAL_SECONDS)
            try:
                weights = self._traffic.weights()
            except (TransientError, ContractError) as error:
                log.warning("notification=%s weights are unavailable: %s", record.notification, error)
                continue
            if weights_equal(weights, intended):
                return on_confirmed(record)
        attempted = parse_iso(attempted_at)
        if weights is None and attempted is not None and self._clock() - attempted < _MAX_UNREADABLE_TIME:
            return record
        state = "are unavailable" if weights is None else f"are {weights}"
        return self._end(
            record,
            "failed",
            f"the reply to a call was lost, and the weights {state}, not {intended}; nothing is repeated",
        )

    def _verify_shift(self, record: RemediationRecord) -> RemediationRecord:
        """Checks whether a shift has helped, once its verification is due."""
        if record.rollback_attempted_at is not None:
            return self._confirm_weights(
                record,
                intended=record.before,
                attempted_at=record.rollback_attempted_at,
                on_confirmed=self._mark_rolled_back,
            )
        called = parse_iso(record.called_at)
        waited = self._clock() - called if called is not None else timedelta.max
        due = timedelta(minutes=self._spec.verify.after_minutes)
        rule = read_rule_state(self._objects, self._spec, record.subject)
        if record.target in rule.unhealthy:
            return self._roll_back(record, f"the target is unhealthy: {rule.unhealthy[record.target]}")
        if waited < due:
            return record
        if rule.firing_alert is not None:
            return self._verify_improvement(record, rule)
        if record.source not in rule.unhealthy:
            return self._end(record, "verified", "the alert was resolved")
        # Unknown data delay the verification, up to twice the declared time.
        return record if waited < 2 * due else self._roll_back(record, rule.unhealthy[record.source])

    def _verify_improvement(self, record: RemediationRecord, rule: RuleAlertState) -> RemediationRecord:
        """Checks whether the value of the open alert has improved enough."""
        improved, required = _improvement(record.value, rule), self._spec.verify.min_improvement
        if improved is None:
            return self._roll_back(record, "the value cannot be compared, and the alert is still open")
        if improved < required:
            return self._roll_back(
                record, f"the figure is better by {improved:.1%}, and {required:.1%} was to be reached"
            )
        return self._end(record, "verified", f"the value improved by {improved:.1%}")

    def _roll_back(self, record: RemediationRecord, reason: str) -> RemediationRecord:
        """Restores the previous weights, unless someone else has changed them."""
        weights = self._traffic.weights()
        if not weights_equal(weights, record.after):
            return self._end(
                record, "failed", f"{reason}; not taken back, since somebody has set the weights to {weights}"
            )
        record = self._records.replace(record, record.replace(rollback_attempted_at=self._now(), reason=reason))
        try:
            self._traffic.shift(
                record.before, call_id=f"{record.notification}-back", source=record.target, target=record.source
            )
        except TransientError as error:
            log.warning("notification=%s the reply to taking back was lost: %s", record.notification, error)
            return self._confirm_weights(
                record,
                intended=record.before,
                attempted_at=record.rollback_attempted_at,
                on_confirmed=self._mark_rolled_back,
            )
        except ContractError as error:
            return self._end(record, "failed", f"{reason}; it could not be taken back: {error.message}")
        return self._mark_rolled_back(record)

    def _mark_rolled_back(self, record: RemediationRecord) -> RemediationRecord:
        return self._end(record, "rolled_back", record.reason)

    def _end(self, record: RemediationRecord, state: RemediationState, reason: str) -> RemediationRecord:
        after = record.replace(state=state, ended_at=self._now(), reason=reason)
        record = self._records.replace(record, after)
        self._notifier.notify_step(record)
        return record

    def _recent_records(self) -> Iterator[RemediationRecord]:
        """Returns all pending records, and all records within the time windows of the limits."""
        return self._records.all(self._spec.name, since=self._clock() - _RECORD_WINDOW)

    def _now(self) -> str:
        return self._clock().isoformat(timespec="milliseconds")


def _improvement(before: float | None, rule: RuleAlertState) -> float | None:
    """Returns the relative improvement of the value; None if unknown."""
    now = rule.value
    if before is None or now is None or before == 0:
        return None
    baseline = rule.firing_alert.detail.get("baseline") if rule.firing_alert is not None else None
    low_is_bad = isinstance(baseline, int | float) and before < baseline
    return (now - before if low_is_bad else before - now) / abs(before)
