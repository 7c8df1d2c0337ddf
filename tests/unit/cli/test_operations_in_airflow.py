"""`--in-airflow` of operation commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deltaworks.cli import app
from deltaworks.cli import context as cli_context
from deltaworks.errors import TransientError
from tests.airflow_server import AirflowServer, RunScript, airflow_server
from tests.unit.cli.command_tree import all_commands
from tests.unit.specs.conftest import ENVIRONMENT, write_project

DAG = "shop__maintenance"
RECORDS = [{"table": "orders", "score": 97}]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AirflowServer]:
    """The Airflow of a project whose lake is unreachable."""
    lake = '{root: "s3://lake", endpoint: "http://127.0.0.1:9"}'
    root = write_project(tmp_path, environment=ENVIRONMENT.replace('{root: "file:///lake"}', lake))
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(root))
    monkeypatch.setattr(cli_context, "apply_settings", lambda: None)
    with airflow_server(DAG) as server:
        monkeypatch.setenv("AIRFLOW_CONN_DELTAWORKS_AIRFLOW", server.connection())
        steps = [("success", {"snapshot_health": "success"})]
        server.scripts[DAG] = RunScript(steps=steps, results={"snapshot_health": RECORDS})
        yield server


def test_it_needs_only_airflow(server: AirflowServer) -> None:
    alone = CliRunner().invoke(app, ["tables", "snapshot", "shop"])
    result = CliRunner().invoke(app, ["tables", "snapshot", "shop", "--in-airflow", "--list-folders"])

    assert isinstance(alone.exception, TransientError), "nothing answers at the lake"
    assert result.exit_code == 0, (result.output, result.exception)
    assert [conf["list_folders"] for conf, _ in server.runs.values()] == [True]
    assert f"Triggered {DAG}" in result.stdout
    assert "orders" in result.stdout


def test_its_results_are_printed_as_json(server: AirflowServer) -> None:
    result = CliRunner().invoke(app, ["tables", "snapshot", "shop", "--in-airflow", "--json"])

    assert json.loads(result.stdout) == RECORDS
    assert f"Triggered {DAG}" in result.stderr


def test_wait_minutes_needs_a_run_in_airflow(server: AirflowServer) -> None:
    result = CliRunner().invoke(app, ["tables", "snapshot", "shop", "--wait-minutes", "1"])

    assert result.exit_code == 2
    assert "--in-airflow" in result.stderr
    assert server.requests == []


def test_read_only_commands_have_no_run_in_airflow() -> None:
    names = {parameter.name for parameter in all_commands()["quarantine list"].params}

    assert "as_json" in names
    assert "in_airflow" not in names
