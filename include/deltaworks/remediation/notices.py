"""Messages of a remediation's queue: the notice in each, and what of the rule's alerts is true now."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from deltaworks.alerts.notice import Notice
from deltaworks.alerts.raising import Alert, alert_key, alerts
from deltaworks.control.objects import ObjectStore
from deltaworks.rules.subjects import BROKEN, FIRING, UNKNOWN, parse_subject
from deltaworks.specs.remediation import RemediationSpec

#: What names an object, and nothing else.
_ID = re.compile(r"^[0-9A-Za-z][0-9A-Za-z-]{7,79}$")
_ACTED_ON = ("raised", "escalated", "reminder")


class Unusable(Exception):
    """A message that says nothing anybody could act on, and why."""


def notice_of(body: str) -> Notice:
    """The notice in a message, with SNS's envelope around it or without.

    Raises:
        Unusable: it is none.
    """
    content = _object(body)
    if "TopicArn" in content and "Message" in content:
        content = _object(content["Message"])
    try:
        notice = Notice.decode(json.dumps(content))
    except (TypeError, ValueError) as error:
        raise Unusable(f"it is no notice: {error}") from error
    texts = (notice.id, notice.kind, notice.cause, notice.subject, notice.at)
    if not all(isinstance(text, str) for text in texts) or not _ID.match(notice.id):
        raise Unusable("its id or another field is none")
    return notice


def _object(text: Any) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (TypeError, ValueError) as error:
        raise Unusable("it is no JSON") from error
    if not isinstance(content, dict):
        raise Unusable("it is no object")
    return content


def concerns(spec: RemediationSpec, notice: Notice) -> bool:
    """Whether a remediation acts on such a notice: its rule has begun to fire, or goes on."""
    return notice.cause == FIRING and notice.kind in _ACTED_ON and _rule_of(notice.subject) == spec.on


@dataclass(frozen=True, slots=True)
class RuleState:
    """A rule as its alerts have it now.

    `firing` is the alert of the subject in question, None where it is not open. `sick` are the targets that fire or of
    which nothing is known; `why` says of each how that is known.
    """

    firing: Alert | None
    sick: Mapping[str, str]

    @property
    def value(self) -> float | None:
        """The figure of the alert, in its own unit."""
        value = self.firing.detail.get("value") if self.firing is not None else None
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def rule_state(objects: ObjectStore, spec: RemediationSpec, subject: str) -> RuleState:
    """Read the alerts of a rule. Alerts that cannot be read count as not open."""
    sick: dict[str, str] = {}
    firing = None
    for alert in alerts(objects):
        if (
            alert.cause not in (FIRING, UNKNOWN, BROKEN)
            or not alert.standing.open
            or _rule_of(alert.subject) != spec.on
        ):
            continue
        if alert.cause == FIRING and alert_key(FIRING, alert.subject) == alert_key(FIRING, subject):
            firing = alert
        word = {FIRING: "fires", UNKNOWN: "is unknown"}.get(alert.cause, "is broken")
        named = targets_of(alert.subject, alert.detail, spec.targets)
        # Of a rule that is unknown as a whole nothing is known of any target.
        of_all = alert.cause != FIRING and not named
        sick |= dict.fromkeys(spec.targets if of_all else named, f"{alert.subject} {word}")
    return RuleState(firing, sick)


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


def _rule_of(subject: str) -> str:
    try:
        pipeline, rule, _ = parse_subject(subject)
    except ValueError:
        return ""
    return f"{pipeline}.{rule}"
