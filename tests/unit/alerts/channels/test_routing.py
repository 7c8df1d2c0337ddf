"""The first route that matches decides; the end of an alert goes wherever its beginning went; nobody is left out."""

from __future__ import annotations

from typing import Any

import pytest

from deltaworks.alerts.channels.channel import Router
from deltaworks.alerts.notification import Notification
from deltaworks.alerts.raising import raise_alert
from deltaworks.control.objects import LocalObjects
from deltaworks.specs.alert_channels import AlertsSpec
from deltaworks.testing import present
from tests.unit.alerts.channels.alert_samples import CONTEXT, life_of_an_alert, rule_alert
from tests.unit.alerts.conftest import Clock

ROUTES = [
    {"rules": ["video_qos.errors_*"], "severities": ["critical"], "channels": ["pager", "video"]},
    {"owners": ["video"], "channels": ["video"]},
    {"pipelines": ["land*"], "channels": ["ops"]},
    {"channels": ["ops", "pager"]},
]


def router(routes: list[dict[str, Any]] = ROUTES, **severities: str) -> Router:
    channels = [
        {"kind": "log", "name": name, "min_severity": severities.get(name, "info")}
        for name in ("pager", "video", "ops", "audit")
    ]
    return Router(AlertsSpec.model_validate({"channels": channels, "routes": routes}), CONTEXT.owners)


def receivers(router: Router, notification: Notification) -> set[str]:
    return {channel.name for channel in router.alerts.channels if router.accepts(channel, notification)}


@pytest.mark.parametrize(
    ("alert", "names"),
    [
        (rule_alert("critical"), {"pager", "video"}),
        (rule_alert("warning"), {"video"}),
        ({"cause": "STREAM_HUNG", "subject": "stream video_qos", "summary": "x"}, {"video"}),
        ({"cause": "STREAM_HUNG", "subject": "relay landing", "summary": "x"}, {"ops"}),
        ({"cause": "STREAM_HUNG", "subject": "stream games", "summary": "x"}, {"ops", "pager"}),
        ({"cause": "HEALTH_SILENT", "subject": "deltaworks__health", "summary": "x"}, {"ops", "pager"}),
        ({"cause": "CHANNEL_FAILING", "subject": "ops", "summary": "x"}, {"ops", "pager", "video"}),
    ],
    ids=lambda value: str(value.get("subject")) if isinstance(value, dict) else "",
)
def test_a_route_decides_by_rule_severity_owner_and_pipeline(
    objects: LocalObjects, clock: Clock, alert: dict[str, Any], names: set[str]
) -> None:
    notification = present(raise_alert(objects, **alert, now=clock.now))

    assert receivers(router(), notification) == names | {"audit"}, "audit is in no route: it gets everything"


def test_the_end_of_an_alert_goes_to_everyone_who_saw_it_open(objects: LocalObjects, clock: Clock) -> None:
    routes = [{"severities": ["critical"], "channels": ["pager"]}, {"channels": ["video"]}]
    told = {kind: receivers(router(routes), one) for kind, one in life_of_an_alert(objects, clock).items()}

    assert told == {
        "raised": {"video", "audit", "ops"},
        "escalated": {"pager", "audit", "ops"},
        "reminder": {"pager", "audit", "ops"},
        "resolved": {"pager", "video", "audit", "ops"},
    }


def test_a_channel_gets_nothing_below_its_severity(objects: LocalObjects, clock: Clock) -> None:
    told = life_of_an_alert(objects, clock)
    strict = router([{"channels": ["video"]}], video="critical")

    assert ["video" in receivers(strict, one) for one in told.values()] == [False, True, True, True]
