"""The settings file is read like Compose's, rejected if it contains a secret, and used by the command."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from deltaworks.cli import app
from deltaworks.errors import ConfigError
from deltaworks.kubernetes.manifests import read_variables, reject_secrets
from tests.unit.kubernetes.conftest import ENVIRONMENT, PIPELINE, Rendered, write_collector
from tests.unit.specs.conftest import RELAY, write_project


def written(folder: Path, text: str) -> Path:
    path = folder / "settings.env"
    path.write_text(text)
    return path


def test_a_file_is_read_as_docker_reads_it(tmp_path: Path) -> None:
    path = written(tmp_path, "# A=comment\n\nNAME=value\nURL=https://x/?a=b\nQUOTED='kept'\nEMPTY=\n")

    assert read_variables(path) == {"NAME": "value", "URL": "https://x/?a=b", "QUOTED": "'kept'", "EMPTY": ""}


@pytest.mark.parametrize("line", ["export NAME=value", "NAME", "1NAME=x", "NA ME=x"])
def test_an_invalid_line_is_rejected_with_its_number(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_variables(written(tmp_path, f"A=1\n{line}\n"))

    assert caught.value.condition == "KUBERNETES_SETTINGS_INVALID"
    assert "settings.env:2 is not of the form NAME=value" in caught.value.message


def test_a_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_variables(tmp_path / "nowhere.env")


@pytest.mark.parametrize(
    "name",
    ["DELTAWORKS_LAKE_ACCESS_KEY", "CHAT_TOKEN", "AIRFLOW__CORE__FERNET_KEY", "AIRFLOW_CONN_X", "DB_PASSWORD"],
)
def test_a_secret_is_refused_and_not_shown(render: Callable[..., Rendered], tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        reject_secrets({name: "hunter2", "AWS_REGION": "eu-central-1"}, tmp_path / "settings.env", render().catalog)

    assert f"contains {name}: secrets must not be in a ConfigMap" in caught.value.message
    assert "hunter2" not in str(caught.value)


def test_a_secret_is_detected_by_its_use(render: Callable[..., Rendered], tmp_path: Path) -> None:
    environment = ENVIRONMENT.replace("env:DELTAWORKS_LAKE_SECRET_KEY", "env:INNOCENT")

    with pytest.raises(ConfigError, match="INNOCENT"):
        reject_secrets({"INNOCENT": "x"}, tmp_path, render(environment=environment).catalog)


@pytest.fixture
def restored_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a command sets is gone after the test."""
    monkeypatch.setattr(os, "environ", os.environ.copy())


@pytest.mark.usefixtures("restored_environment")
def test_the_command_prints_manifests_and_says_what_the_secret_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = RELAY.replace("http://localhost/queue", "env:QUEUE")
    write_collector(write_project(tmp_path, environment=ENVIRONMENT, pipeline=PIPELINE, relay=relay))
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(tmp_path))
    settings = written(tmp_path, "DELTAWORKS_ENVIRONMENT=local\nQUEUE=http://queue\n")

    done = CliRunner().invoke(app, ["deploy", "kubernetes", "--settings", str(settings)])

    assert done.exit_code == 0, done.output
    objects = list(yaml.safe_load_all(done.stdout))
    assert {"relay-landing", "deadman", "collector"} <= {item["metadata"]["name"] for item in objects}
    assert "Secret deltaworks in namespace lakehouse needs: CHAT_TOKEN, CHAT_URL, " in done.stderr
    assert "QUEUE" not in done.stderr
