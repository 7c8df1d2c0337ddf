"""Messages of remediations: reads the notifications in their queue and the current alerts of their rule, and sends a
notification for every step, and alerts that need an operator.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deltaworks.alerts.notification import Notification
from deltaworks.alerts.raising import Alert, alert_key, alerts, get_alert_cause, raise_alert, resolve_alert
from deltaworks.control import paths
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.remediation import RemediationRecord
from deltaworks.errors import DeltaworksError
from deltaworks.rules.subjects import BROKEN, FIRING, UNKNOWN, parse_subject
from deltaworks.specs.environment_sections import RemediationSpec

#: Valid notification ids. They become object names.
_NOTICE_ID = re.compile(r"^[0-9A-Za-z][0-9A-Za-z-]{7,79}$")
_ACTIONABLE_KINDS = ("raised", "escalated", "reminder")


class UnusableMessage(Exception):
    """A message that cannot be handled, with the reason."""


def parse_notification(body: str) -> Notification:
    """Parses the notification of a message, with or without the SNS envelope.

    Raises:
        UnusableMessage: the message is not a notification.
    """
    content = _parse_object(body)
    if "TopicArn" in content and "Message" in content:
        content = _parse_object(content["Message"])
    try:
        notification = Notification.decode(json.dumps(content).encode())
    except ValueError as error:
        raise UnusableMessage(f"it is not a notification: {error}") from error
    if not _NOTICE_ID.match(notification.id):
        raise UnusableMessage("its id is invalid")
    return notification


def _parse_object(text: Any) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (TypeError, ValueError) as error:
        raise UnusableMessage("it is not JSON") from error
    if not isinstance(content, dict):
        raise UnusableMessage("it is not a JSON object")
    return content


def is_relevant(spec: RemediationSpec, notification: Notification) -> bool:
    """Whether a remediation acts on a notification: its rule fires, and the alert is newly raised."""
    return (
        notification.cause == FIRING
        and notification.kind in _ACTIONABLE_KINDS
        and _rule_name(notification.subject) == spec.rule
    )


@dataclass(frozen=True, slots=True)
class RuleAlertState:
    """The current alerts of a rule.

    - `firing_alert`: the open alert of the subject, or None.
    - `unhealthy`: the targets that fire or are unknown, with the reason.
    """

    firing_alert: Alert | None
    unhealthy: Mapping[str, str]

    @property
    def value(self) -> float | None:
        """The value of the firing alert, in its own unit."""
        value = self.firing_alert.detail.get("value") if self.firing_alert is not None else None
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def read_rule_state(objects: ObjectStore, spec: RemediationSpec, subject: str) -> RuleAlertState:
    """Reads the alerts of a rule. An unreadable alert counts as not open."""
    unhealthy: dict[str, str] = {}
    firing_alert = None
    for alert in alerts(objects):
        if (
            alert.cause not in (FIRING, UNKNOWN, BROKEN)
            or not alert.state.is_open
            or _rule_name(alert.subject) != spec.rule
        ):
            continue
        if alert.cause == FIRING and alert_key(FIRING, alert.subject) == alert_key(FIRING, subject):
            firing_alert = alert
        word = {FIRING: "fires", UNKNOWN: "is unknown"}.get(alert.cause, "is broken")
        named = targets_of(spec, alert.subject, alert.detail)
        # If the rule itself is unknown, all targets are unknown.
        concerns_all = alert.cause != FIRING and not named
        unhealthy |= dict.fromkeys(spec.targets if concerns_all else named, f"{alert.subject} {word}")
    return RuleAlertState(firing_alert, unhealthy)


def targets_of(spec: RemediationSpec, subject: str, detail: Mapping[str, Any]) -> set[str]:
    """Returns the targets that an alert concerns: values of the declared label in its subject and label sets."""
    try:
        _, _, labels = parse_subject(subject)
    except ValueError:
        return set()
    listed = detail.get("label_sets")
    sets = [
        labels,
        *(item for item in (listed if isinstance(listed, list | tuple) else ()) if isinstance(item, Mapping)),
    ]
    return {value for item in sets if (value := item.get(spec.label)) in spec.targets}


def _rule_name(subject: str) -> str:
    try:
        pipeline, rule, _ = parse_subject(subject)
    except ValueError:
        return ""
    return f"{pipeline}.{rule}"


log = logging.getLogger(__name__)
_STATE_ORDER = ("dry_run", "refused", "planned", "called", "verified", "rolled_back", "failed")
STEP, FAILED, HELD = "REMEDIATION_STEP", "REMEDIATION_FAILED", "REMEDIATION_HELD"


class StepNotifier:
    """Notifications of one remediation. If one cannot be sent the remediation continues; its record has the same
    information.
    """

    def __init__(self, spec: RemediationSpec, objects: ObjectStore) -> None:
        self._spec, self._objects = spec, objects

    def notify_step(self, record: RemediationRecord) -> None:
        """Sends the notification of a step once, even if it is called repeatedly."""
        at = record.ended_at or record.called_at or record.at
        summary = _step_summary(record)
        instant = parse_iso(at) or utc_now()
        digest = hashlib.sha256(f"{record.notification} {record.state}".encode()).hexdigest()[:12]
        notification = Notification(
            # Ids sort by time. Steps with the same time sort by their order.
            id=f"{instant:%Y%m%dT%H%M%S%f}-{_STATE_ORDER.index(record.state)}{digest}",
            kind="raised",
            cause=STEP,
            subject=f"{self._spec.name}.{record.state}",
            severity="info" if record.state == "dry_run" else "warning",
            summary=summary,
            detail=record.model_dump(mode="json", exclude={"format"}),
            runbook=get_alert_cause(STEP).runbook,
            since=at,
            at=at,
        )
        self._log_errors(
            lambda: self._objects.put_if_absent(paths.alert_notification(notification.id), notification.encode())
        )
        if record.state in ("failed", "rolled_back"):
            self._log_errors(lambda: raise_alert(self._objects, cause=FAILED, subject=self._spec.name, summary=summary))
        elif record.state == "verified":
            self._log_errors(lambda: resolve_alert(self._objects, cause=FAILED, subject=self._spec.name))

    def notify_hold(self, reason: str) -> None:
        """Raises the alert that the remediation is on hold."""
        summary = f"{self._spec.name} is on hold: {reason}."
        self._log_errors(lambda: raise_alert(self._objects, cause=HELD, subject=self._spec.name, summary=summary))

    @staticmethod
    def _log_errors(action: Callable[[], Any]) -> None:
        try:
            action()
        except DeltaworksError as error:
            log.warning("a notification could not be stored: %s", error)


def resolve_hold_alerts(objects: ObjectStore, remediation: str) -> None:
    """Resolves the alerts about the hold after an operator has resumed the remediation."""
    for cause in (HELD, FAILED):
        resolve_alert(objects, cause=cause, subject=remediation)


def _step_summary(record: RemediationRecord) -> str:
    way = f"from {record.source} to {record.target}: {record.before} → {record.after}"
    texts = {
        "dry_run": f"Dry run: would shift weight {way}.",
        "planned": f"About to shift weight {way}.",
        "called": f"Shifted weight {way}.",
        "verified": f"The shift from {record.source} to {record.target} helped: {record.reason}.",
        "rolled_back": f"The shift from {record.source} to {record.target} was rolled back: {record.reason}.",
        "failed": f"Check the weights: {record.reason}.",
        "refused": f"No action: {record.reason}.",
    }
    return f"{texts[record.state]} Set off by {record.subject}, notification {record.notification}."
