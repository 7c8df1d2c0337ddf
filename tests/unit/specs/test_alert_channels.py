"""Channels hold no secret in clear; routes name channels that exist and leave out no alert."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from deltaworks.specs.alert_channels import AlertsSpec, webhook_channel

MAIL = {
    "kind": "email",
    "name": "mail",
    "host": "smtp.example.com",
    "sender": "alerts@example.com",
    "recipients": ["ada@example.com"],
}
LOG = {"kind": "log", "name": "log"}


def alerts(*channels: dict[str, Any], routes: list[dict[str, Any]] | None = None) -> AlertsSpec:
    return AlertsSpec.model_validate({"channels": channels, "routes": routes or []})


@pytest.mark.parametrize(
    "channel",
    [
        {"kind": "slack", "name": "chat", "url": "https://hooks.slack.com/services/T0/B0/abc"},
        {"kind": "teams", "name": "chat", "url": "https://x.logic.azure.com/workflows/1"},
        {"kind": "pagerduty", "name": "pager", "routing_key": "a" * 32},
        {**MAIL, "username": "deltaworks", "password": "s3cret"},
        {"kind": "alertmanager", "name": "am", "url": "http://am:9093", "token": "s3cret"},
    ],
    ids=lambda channel: str(channel["kind"]),
)
def test_a_secret_in_clear_is_refused(channel: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="write secrets and addresses as references, env:NAME"):
        alerts(channel)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"username": "deltaworks"}, "a login needs both"),
        ({"username": "u", "password": "env:P", "security": "none"}, "encrypted connection only"),
        ({"sender": "Alerts <alerts@example.com>"}, "sender"),
        ({"recipients": []}, "at least 1 item"),
        ({"recipients": ["ada@example.com\nBcc: eve@example.com"]}, "recipients"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_invalid_mail_channel_is_refused(more: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        alerts({**MAIL, **more})


@pytest.mark.parametrize(
    ("routes", "key_path", "text"),
    [
        ([{"channels": ["lgo"]}], ("routes", 0, "channels", 0), "there is no channel 'lgo'.*did you mean 'log'?"),
        ([{"channels": ["log"]}, {"channels": ["mail"]}], ("routes", 0), "write it last"),
        ([{"severities": ["critical"], "channels": ["log"]}], ("routes", 0), "would reach no one"),
        ([{"channels": []}], ("routes", 0, "channels"), "at least 1 item"),
        ([{"owner": ["a"], "channels": ["log"]}], ("routes", 0, "owner"), "Extra inputs"),
        ([{"severities": ["high"], "channels": ["log"]}], ("routes", 0, "severities", 0), "critical"),
    ],
    ids=["channel", "unreachable", "incomplete", "empty", "key", "severity"],
)
def test_an_invalid_route_is_refused_at_its_key(
    routes: list[dict[str, Any]], key_path: tuple[str | int, ...], text: str
) -> None:
    with pytest.raises(ValidationError, match=text) as refused:
        alerts(LOG, MAIL, routes=routes)

    assert refused.value.errors()[0]["loc"] == key_path


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("https://hooks.slack.com/services/T0/B0/abc", "slack"),
        ("https://prod-1.westeurope.logic.azure.com:443/workflows/1/triggers/manual", "teams"),
        ("https://x.environment.api.powerplatform.com/powerautomate/1", "teams"),
        ("https://hooks.example.com/hooks.slack.com", "webhook"),
        ("https://nothooks.slack.com.example.com/", "webhook"),
    ],
    ids=lambda value: str(value)[:45],
)
def test_an_address_outside_the_specs_gets_the_format_of_its_host(url: str, kind: str) -> None:
    channel = webhook_channel("webhook", url, "env:DELTAWORKS_ALERTS_WEBHOOK")

    assert channel.kind == kind
    assert url not in channel.model_dump_json()
