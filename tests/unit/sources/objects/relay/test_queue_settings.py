"""Harmful queue settings are reported by the wiring command and at the start of a relay."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from deltaworks.cli import app
from deltaworks.cli import wire as wire_command
from deltaworks.sources.objects.relay.queue import queue_warnings
from deltaworks.sources.objects.relay.wiring import Wiring
from tests.unit.sources.conftest import Landing
from tests.unit.sources.objects.relay.relay_harness import relay_of, running
from tests.waiting import eventually


def put_aside_after(landing: Landing, deliveries: int, queue_url: str | None = None) -> None:
    dead = landing.sqs.create_queue(QueueName=f"{landing.bucket}-dead")["QueueUrl"]
    arn = landing.sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": deliveries})
    landing.sqs.set_queue_attributes(QueueUrl=queue_url or landing.queue_url, Attributes={"RedrivePolicy": policy})


@pytest.mark.parametrize(
    ("deliveries", "visibility", "conditions"),
    [
        (2, 120, ["QUEUE_REDRIVES_EARLY"]),
        (3, 30, []),
        (5, 29, ["QUEUE_VISIBILITY_SHORT"]),
        (1, 0, ["QUEUE_REDRIVES_EARLY", "QUEUE_VISIBILITY_SHORT"]),
    ],
)
def test_harmful_settings_are_reported(
    landing: Landing, deliveries: int, visibility: int, conditions: list[str]
) -> None:
    put_aside_after(landing, deliveries)
    landing.returns_after(visibility)

    assert [each.condition for each in queue_warnings(landing.queue())] == conditions


def test_the_relays_timeout_overrides_the_queues(landing: Landing) -> None:
    landing.returns_after(5)
    assert queue_warnings(landing.queue(visibility_seconds=60)) == ()

    landing.returns_after(600)
    (warning,) = queue_warnings(landing.queue(visibility_seconds=10))
    assert "after 10 s" in str(warning)


def test_a_relay_logs_the_warnings_when_it_starts(landing: Landing, caplog: pytest.LogCaptureFixture) -> None:
    put_aside_after(landing, 1)

    with running(relay_of(landing)):
        eventually(lambda: "QUEUE_REDRIVES_EARLY" in caplog.text, "the warning")

    assert "relay=landing [QUEUE_REDRIVES_EARLY]" in caplog.text


def test_wiring_an_existing_queue_reports_the_warnings(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    name = bucket = f"plain-{landing.bucket}"
    landing.s3.create_bucket(Bucket=bucket)
    queue_url = Wiring(landing.messaging, name=name, buckets=[bucket]).wire(dry_run=False).queue_url
    environment = SimpleNamespace(messaging=landing.messaging, lake=landing.lake)
    project: Any = SimpleNamespace(environment=environment, relay=lambda _: landing.spec(buckets=(bucket,)))
    monkeypatch.setattr(wire_command, "catalog", lambda **_: project)
    wired = ["wire", "landing", "--name", name, "--no-policies"]
    assert "QUEUE_REDRIVES_EARLY" not in CliRunner().invoke(app, wired).output

    put_aside_after(landing, 2, queue_url)

    told = CliRunner().invoke(app, wired)
    assert "QUEUE_REDRIVES_EARLY" in told.output
    assert "after 2 deliveries" in told.output
