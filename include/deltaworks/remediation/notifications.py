"""Messages of a remediation's queue: the notification in each, and what of the rule's alerts is true now."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from deltaworks.alerts.notification import Notification
from deltaworks.alerts.raising import Alert, alert_key, alerts
from deltaworks.control.objects import ObjectStore
from deltaworks.rules.subjects import BROKEN, FIRING, UNKNOWN, parse_subject
from deltaworks.specs.remediation import RemediationSpec

#: What names an object, and nothing else.
_NOTICE_ID = re.compile(r"^[0-9A-Za-z][0-9A-Za-z-]{7,79}$")
_ACTIONABLE_KINDS = ("raised", "escalated", "reminder")


class UnusableMessage(Exception):
    """A message that says nothing anybody could act on, and why."""


def parse_notification(body: str) -> Notification:
    """The notification in a message, with SNS's envelope around it or without.

    Raises:
        Unusable: it is none.
    """
    content = _parse_object(body)
    if "TopicArn" in content and "Message" in content:
        content = _parse_object(content["Message"])
    try:
        notification = Notification.decode(json.dumps(content))
    except (TypeError, ValueError) as error:
        raise UnusableMessage(f"it is no notification: {error}") from error
    texts = (notification.id, notification.kind, notification.cause, notification.subject, notification.at)
    if not all(isinstance(text, str) for text in texts) or not _NOTICE_ID.match(notification.id):
        raise UnusableMessage("its id or another field is none")
    return notification


def _parse_object(text: Any) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (TypeError, ValueError) as error:
        raise UnusableMessage("it is no JSON") from error
    if not isinstance(content, dict):
        raise UnusableMessage("it is no object")
    return content


def is_relevant(spec: RemediationSpec, notification: Notification) -> bool:
    """Whether a remediation acts on such a notification: its rule has begun to fire, or goes on."""
    return (
        notification.cause == FIRING
        and notification.kind in _ACTIONABLE_KINDS
        and _rule_name(notification.subject) == spec.rule
    )


@dataclass(frozen=True, slots=True)
class RuleAlertState:
    """A rule as its alerts have it now.

    `firing` is the alert of the subject in question, None where it is not open. `sick` are the targets that fire or of
    which nothing is known; `why` says of each how that is known.
    """

    firing_alert: Alert | None
    unhealthy: Mapping[str, str]

    @property
    def value(self) -> float | None:
        """The figure of the alert, in its own unit."""
        value = self.firing_alert.detail.get("value") if self.firing_alert is not None else None
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def read_rule_state(objects: ObjectStore, spec: RemediationSpec, subject: str) -> RuleAlertState:
    """Read the alerts of a rule. Alerts that cannot be read count as not open."""
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
        named = targets_of(alert.subject, alert.detail, spec.targets)
        # Of a rule that is unknown as a whole nothing is known of any target.
        concerns_all = alert.cause != FIRING and not named
        unhealthy |= dict.fromkeys(spec.targets if concerns_all else named, f"{alert.subject} {word}")
    return RuleAlertState(firing_alert, unhealthy)


def targets_of(subject: str, detail: Mapping[str, Any], targets: Collection[str]) -> set[str]:
    """The targets that an alert is about: values of its labels, or of the label sets that it lists."""
    try:
        _, _, labels = parse_subject(subject)
    except ValueError:
        return set()
    listed = detail.get("label_sets")
    sets = [
        labels,
        *(item for item in (listed if isinstance(listed, list | tuple) else ()) if isinstance(item, Mapping)),
    ]
    return {value for item in sets for value in item.values() if value in targets}


def _rule_name(subject: str) -> str:
    try:
        pipeline, rule, _ = parse_subject(subject)
    except ValueError:
        return ""
    return f"{pipeline}.{rule}"
