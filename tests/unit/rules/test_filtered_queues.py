"""Two queues at one topic, each with its filter policy: each gets the notifications of its own rules, over the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltaworks.alerts.channels import open_channels
from deltaworks.alerts.sending import send_notifications
from deltaworks.specs.environment import AlertsSpec
from tests.moto_server import running_moto
from tests.unit.alerts.aws_harness import Aws
from tests.unit.rules.rule_harness import RATE, RuleStage, rules_project


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    monkeypatch.setenv("TEST_ACCESS_KEY", "test")
    monkeypatch.setenv("TEST_SECRET_KEY", "test")
    with running_moto() as endpoint:
        yield Aws(endpoint)


def test_a_queue_gets_the_notices_of_the_rules_its_policy_names(tmp_path: Path, aws: Aws) -> None:
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
    stage = RuleStage(rules_project(tmp_path, RATE, other))
    stage.rates([0.01, 0.2, 0.2, 0.2, 0.2])
    for minute in (0, 3):
        stage.look(minute + 2.6)
    declared = AlertsSpec.model_validate({"channels": [{"kind": "sns", "name": "people", "topic": topic}]})

    result = send_notifications(stage.objects, open_channels(declared, aws.messaging))

    assert result.sent == 2
    (mine,) = aws.received(own)
    (critical,) = aws.received(every)
    assert (mine["subject"], mine["kind"]) == ("shop.rate{cdn=a}", "raised")
    assert mine["detail"]["episode"] == "shop.rate{cdn=a}@2026-03-02T10:03Z"
    assert mine["id"] != critical["id"]
    assert (critical["subject"], critical["severity"]) == ("shop.other{cdn=a}", "critical")
