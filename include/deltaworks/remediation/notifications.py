"""Messages in a remediation's queue: parses notifications, and reads the current alerts of their rule."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deltaworks.alerts.notification import Notification
from deltaworks.alerts.raising import Alert, alert_key, alerts
from deltaworks.control.objects import ObjectStore
from deltaworks.rules.subjects import BROKEN, FIRING, UNKNOWN, parse_subject
from deltaworks.specs.remediation import RemediationSpec

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
