"""The health check reports a missing alert channel; one environment variable fixes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaworks.control.health.processes import channel_finding, channel_warning
from deltaworks.errors.conditions import catalog
from deltaworks.specs.alert_channels import AlertsSpec
from deltaworks.specs.project import load_catalog
from tests.unit.maintenance.table_data import project

WEBHOOK = {"kind": "webhook", "name": "chat", "url": "env:CHAT_URL"}
SNS = {"kind": "sns", "name": "pager", "topic": "arn:aws:sns:eu-central-1:1:pager"}
LOG = {"kind": "log", "name": "log"}


@pytest.mark.parametrize("channels", [[], [LOG], [LOG, {**LOG, "name": "other"}]], ids=str)
def test_a_log_channel_alone_is_a_finding(channels: list[dict[str, str]]) -> None:
    alerts = AlertsSpec.model_validate({"channels": channels})

    finding = channel_finding(alerts)

    assert finding is not None
    assert finding.state == "lagging", "a warning, and nothing that restarts or pages"
    assert catalog().health_causes[finding.cause].alert is None
    assert channel_warning(alerts).startswith("ALERTS_UNDELIVERED: Alerts reach no person")
    assert "DELTAWORKS_ALERTS_WEBHOOK" in channel_warning(alerts)


@pytest.mark.parametrize("channel", [WEBHOOK, SNS], ids=str)
def test_one_channel_to_people_is_enough(channel: dict[str, str]) -> None:
    assert channel_warning(AlertsSpec.model_validate({"channels": [LOG, channel]})) == ""


def test_the_environment_variable_adds_a_channel_and_is_read_when_sending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DELTAWORKS_ALERTS_WEBHOOK", raising=False)
    project(tmp_path)
    root = tmp_path / "project"

    assert channel_warning(load_catalog("local", root=root).environment.alerts) != ""
    monkeypatch.setenv("DELTAWORKS_ALERTS_WEBHOOK", "https://hooks.example.com/secret")
    environment = load_catalog("local", root=root).environment

    assert channel_warning(environment.alerts) == ""
    assert [channel.name for channel in environment.alerts.channels] == ["log", "webhook"]
    assert "hooks.example.com" not in environment.model_dump_json()


def test_a_declared_channel_of_the_same_name_is_kept() -> None:
    declared = AlertsSpec.model_validate({"channels": [{**WEBHOOK, "name": "webhook"}]})
    from deltaworks.specs.environment import EnvironmentSpec
    from deltaworks.specs.storage import AwsSpec, StorageSpec

    lake = StorageSpec(root="file:///lake")
    environment = EnvironmentSpec(environment="prod", lake=lake, landing=lake, messaging=AwsSpec(), alerts=declared)

    assert environment.with_webhook("https://hooks.example.com") == environment
