"""Queues with filter policies receive only the notifications of their rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltaworks.alerts.channels import open_channels
from deltaworks.alerts.sending import send_notifications
from deltaworks.specs.alert_channels import AlertsSpec
from tests.moto_server import running_moto
from tests.unit.alerts.aws_harness import Aws
from tests.unit.rules.rule_harness import RATE, RuleHarness, rules_project


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    monkeypatch.setenv("TEST_ACCESS_KEY", "test")
    monkeypatch.setenv("TEST_SECRET_KEY", "test")
    with running_moto() as endpoint:
        yield Aws(endpoint)


def test_a_filter_policy_selects_notifications_of_its_rules(tmp_path: Path, aws: Aws) -> None:
    topic, own, every = aws.topic(), aws.queue(), aws.queue()
    policies = {
        own: {"cause": ["RULE_FIRING"], "pipeline": ["shop"], "rule": ["rate"]},
        every: {"severity": ["critical"]},
    }
    for queue, policy in policies.items():
        subscription = aws.subscribe(topic, queue)
        aws.client("sns").set_subscription_attributes(
            SubscriptionArn=subscription, AttributeName="FilterPolicy", AttributeValue=json.dumps(policy)
        )
    other = RATE.replace("name: rate", "name: other, severity: critical")
    harness = RuleHarness(rules_project(tmp_path, RATE, other))
    harness.append_rates([0.01, 0.2, 0.2, 0.2, 0.2])
    for minute in (0, 3):
        harness.evaluate_at(minute + 2.6)
    declared = AlertsSpec.model_validate({"channels": [{"kind": "sns", "name": "people", "topic": topic}]})

    result = send_notifications(harness.objects, open_channels(declared, aws.messaging))

    assert result.sent == 2
    (mine,) = aws.received(own)
    (critical,) = aws.received(every)
    assert (mine["subject"], mine["kind"]) == ("shop.rate{cdn=a}", "raised")
    assert mine["detail"]["episode"] == "shop.rate{cdn=a}@2026-03-02T10:03Z"
    assert mine["id"] != critical["id"]
    assert (critical["subject"], critical["severity"]) == ("shop.other{cdn=a}", "critical")
