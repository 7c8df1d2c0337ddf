"""PagerDuty and Alertmanager open an alert once, follow its severity, and close it when it is resolved."""

from __future__ import annotations

import datetime as dt

import pytest

from deltaworks.alerts.channels.message import message_of
from deltaworks.alerts.channels.webhooks import (
    alertmanager_alerts,
    alertmanager_sender,
    pagerduty_event,
    pagerduty_sender,
)
from deltaworks.alerts.notification import Notification, sample_notifications
from deltaworks.alerts.raising import raise_alert, resolve_alert
from deltaworks.control.objects import LocalObjects
from deltaworks.errors import DeltaworksError
from deltaworks.errors.conditions import catalog
from deltaworks.specs.alert_channels import AlertmanagerChannelSpec, PagerDutyChannelSpec
from deltaworks.testing import present
from tests.unit.alerts.channels.alert_samples import CONTEXT, life_of_an_alert, rule_alert
from tests.unit.alerts.channels.wire_servers import (
    ALERTMANAGER_ALERTS,
    PAGERDUTY_CHANGE,
    PAGERDUTY_EVENT,
    ROUTING_KEY,
    AlertmanagerServer,
    PagerDutyServer,
    errors_of,
    running,
)
from tests.unit.alerts.conftest import Clock


def pagerduty(url: str) -> PagerDutyChannelSpec:
    declared = {"kind": "pagerduty", "name": "pager", "url": url, "routing_key": "env:PAGER_KEY"}
    return PagerDutyChannelSpec.model_validate(declared)


def alertmanager(url: str) -> AlertmanagerChannelSpec:
    declared = {"kind": "alertmanager", "name": "am", "url": url, "token": "env:AM_TOKEN"}
    return AlertmanagerChannelSpec.model_validate(declared)


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGER_KEY", ROUTING_KEY)
    monkeypatch.setenv("AM_TOKEN", "s3cret")


def at(notification: Notification) -> dt.datetime:
    return dt.datetime.fromisoformat(notification.at)


def test_pagerduty_has_one_incident_from_the_beginning_to_the_end(objects: LocalObjects, clock: Clock) -> None:
    with running(PagerDutyServer()) as server:
        send = pagerduty_sender(pagerduty(server.url), CONTEXT)
        life, severities = life_of_an_alert(objects, clock), []
        for notification in life.values():
            send(notification)
            send(notification)  # a repeat after a lost answer
            severities.append([incident["severity"] for incident in server.incidents.values()])

    assert server.errors == []
    assert severities == [["warning"], ["critical"], ["critical"], []]
    (opened, *_), (*_, closed) = server.received, server.received
    assert opened["dedup_key"] == closed["dedup_key"]
    assert opened["payload"]["summary"].startswith("Warning: Requests that fail, cdn a")
    assert opened["payload"]["custom_details"]["owner"] == "video"
    assert [link["text"] for link in opened["links"]] == ["Runbook", "Open alerts"]


def test_the_step_of_a_remediation_is_a_change_and_no_incident_that_stays_open(
    objects: LocalObjects, clock: Clock
) -> None:
    step = present(
        raise_alert(
            objects, cause="REMEDIATION_STEP", subject="shift_cdn.called", summary="Shifted weight.", now=clock.now
        )
    )
    with running(PagerDutyServer()) as server:
        pagerduty_sender(pagerduty(server.url), CONTEXT)(step)

    assert server.errors == []
    assert server.incidents == {}
    assert [change["custom_details"]["text"] for change in server.changes] == ["Shifted weight."]


def test_a_rejection_of_pagerduty_does_not_contain_the_key(objects: LocalObjects, clock: Clock) -> None:
    notification = present(raise_alert(objects, **rule_alert(), now=clock.now))
    with running(PagerDutyServer()) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAGER_KEY", "W" * 32)
        with pytest.raises(DeltaworksError) as refused:
            pagerduty_sender(pagerduty(server.url), CONTEXT)(notification)

    assert "Invalid routing key" in refused.value.message
    assert "WWW" not in str(refused.value)


def test_alertmanager_has_one_active_alert_at_a_time_and_none_after_the_end(
    objects: LocalObjects, clock: Clock
) -> None:
    with running(AlertmanagerServer()) as server:
        send = alertmanager_sender(alertmanager(f"{server.url}/"), CONTEXT)
        active = {}
        for kind, notification in life_of_an_alert(objects, clock).items():
            send(notification)
            active[kind] = [alert["labels"]["severity"] for alert in server.active(at(notification))]

    assert server.errors == []
    assert active == {"raised": ["warning"], "escalated": ["critical"], "reminder": ["critical"], "resolved": []}
    assert server.requests[0].headers["Authorization"] == "Bearer s3cret"
    first = server.received[0][0]
    assert first["labels"] == {
        "alertname": "RULE_FIRING",
        "severity": "warning",
        "subject": "video_qos.errors_high{cdn=a,region=}",
        "environment": "production",
        "owner": "video",
        "pipeline": "video_qos",
        "rule": "errors_high",
        "cdn": "a",
    }
    assert first["annotations"]["runbook_url"].endswith("#a-rule-fires")
    assert first["generatorURL"] == "https://airflow.example.com/deltaworks/alerts"


def test_alertmanager_keeps_an_open_alert_until_after_its_reminder_and_no_longer(
    objects: LocalObjects, clock: Clock
) -> None:
    with running(AlertmanagerServer()) as server:
        raised = present(raise_alert(objects, **rule_alert(), now=clock.now))
        alertmanager_sender(alertmanager(server.url), CONTEXT)(raised)

    repeat = dt.timedelta(seconds=catalog().alerts["RULE_FIRING"].repeat_seconds)
    assert server.active(at(raised) + repeat + dt.timedelta(minutes=30))
    assert not server.active(at(raised) + repeat + dt.timedelta(hours=2)), "whoever stops sending leaves nothing open"


def test_every_cause_fits_both_formats(objects: LocalObjects, clock: Clock) -> None:
    alert = {"cause": "JOB_FAILED", "subject": "ü" * 300, "summary": "x" * 5_000}
    raised = present(raise_alert(objects, **alert, now=clock.now))
    resolved = present(resolve_alert(objects, **alert, now=clock.advance(5)))
    errors = []
    for cause in catalog().alerts.values():
        for one in (raised, resolved):
            notification = one.replace(cause=cause.name, severity=cause.severity)
            message = message_of(notification, CONTEXT)
            path, event = pagerduty_event(notification, message)
            schema = PAGERDUTY_EVENT if path == "/v2/enqueue" else PAGERDUTY_CHANGE
            errors += errors_of({"routing_key": ROUTING_KEY, **event}, schema)
            errors += errors_of(alertmanager_alerts(notification, message, CONTEXT), ALERTMANAGER_ALERTS)

    assert errors == []


def test_a_test_of_the_channel_leaves_nothing_open() -> None:
    with running(PagerDutyServer()) as pager, running(AlertmanagerServer()) as manager:
        for notification in sample_notifications(ends=True):
            pagerduty_sender(pagerduty(pager.url), CONTEXT)(notification)
            alertmanager_sender(alertmanager(manager.url), CONTEXT)(notification)

    assert (pager.errors, manager.errors) == ([], [])
    assert len(pager.received) == len(manager.received) == 2
    assert pager.incidents == {}
    assert manager.active(at(notification)) == []
