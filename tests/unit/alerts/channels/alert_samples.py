"""Notifications of one alert as the alert code builds them: raised, escalated, reminded and resolved."""

from __future__ import annotations

from typing import Any

from deltaworks.alerts.channels.message import MessageContext
from deltaworks.alerts.notification import Notification
from deltaworks.alerts.raising import flush_alerts, raise_alert, resolve_alert
from deltaworks.control.objects import ObjectStore
from deltaworks.rules.subjects import FIRING, RuleDetail, subject_of
from deltaworks.testing import present
from tests.unit.alerts.conftest import Clock

CONTEXT = MessageContext(
    environment="production",
    docs_url="https://docs.example.com",
    console_url="https://airflow.example.com/deltaworks",
    owners={"video_qos": "video", "games": "games-data", "landing": "platform"},
)
ADVICE = "Does the origin answer? Ask the network team."


def rule_alert(severity: str = "warning", **more: Any) -> dict[str, Any]:
    """Returns the arguments of an alert of a rule for one CDN."""
    labels = {"cdn": "a", "region": None}
    detail = RuleDetail(
        pipeline="video_qos",
        rule="errors_high",
        title="Requests that fail",
        episode="video_qos.errors_high{cdn=a}@2026-03-01T12:00Z",
        labels=labels,
        next_step=ADVICE,
    )
    summary = f"Requests that fail: cdn a at 0.08; the rule fires when above 0.05 for 3 minutes. {ADVICE}"
    return {
        "cause": FIRING,
        "subject": subject_of("video_qos", "errors_high", tuple(labels), tuple(labels.values())),
        "summary": summary,
        "severity": severity,
        "detail": detail.as_dict(),
        **more,
    }


def life_of_an_alert(objects: ObjectStore, clock: Clock) -> dict[str, Notification]:
    """Raises an alert as a warning, escalates it, waits for a reminder, and resolves it."""
    told = {"raised": present(raise_alert(objects, **rule_alert("warning"), now=clock.now))}
    told["escalated"] = present(raise_alert(objects, **rule_alert("critical"), now=clock.advance(60)))
    (told["reminder"],) = flush_alerts(objects, now=clock.advance(4 * 3600))
    subject = told["raised"].subject
    told["resolved"] = present(
        resolve_alert(objects, cause=FIRING, subject=subject, summary="errors_high resolved.", now=clock.advance(60))
    )
    return told
