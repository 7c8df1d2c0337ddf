"""Invalid pipelines do not affect commands for valid ones, and their streams can be stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StopFlag
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import ConfigError
from deltaworks.testing import local_storage, write_project
from tests.airflow_server import AirflowServer, airflow_server
from tests.commands import invoke as run
from tests.heartbeats import put_heartbeat
from tests.unit.specs.conftest import PIPELINE

#: Pipelines that are wrong, each in a way of its own.
INVALID = {
    "a_tab": PIPELINE.replace("  kind", "\tkind"),
    "empty": "",
    "another_name": PIPELINE,
    "no_relay": PIPELINE.replace("pipeline: shop", "pipeline: no_relay").replace("relay: landing", "relay: nowhere"),
    "store": PIPELINE.replace("pipeline: shop", "pipeline: store\ncolour: blue"),
}


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The lake of a project with a valid pipeline `shop` and many invalid ones."""
    write_project(tmp_path, PIPELINE, files={f"pipelines/{name}/pipeline.yaml": text for name, text in INVALID.items()})
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(tmp_path))
    monkeypatch.setenv("DELTAWORKS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DELTAWORKS_ENVIRONMENT", "local")
    return open_objects(local_storage(tmp_path / "lake"))


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[AirflowServer]:
    with airflow_server(*(f"{name}__stream" for name in ("shop", *INVALID))) as server:
        monkeypatch.setenv("AIRFLOW_CONN_DELTAWORKS_AIRFLOW", server.connection())
        yield server


def error_of(*words: str) -> ConfigError:
    error = run(*words).exception
    assert isinstance(error, ConfigError)
    return error


@pytest.mark.parametrize(
    "words",
    [
        ("sql",),
        ("sql", "SELECT 1 AS n"),
        ("batches", "shop"),
        ("tables",),
        ("tables", "check"),
        ("pipelines", "show", "shop"),
        ("pipelines", "diff", "shop"),
        ("quarantine", "list", "shop"),
        ("alerts", "rules"),
    ],
    ids=" ".join,
)
def test_a_command_works_for_valid_pipelines_and_names_skipped_ones(lake: ObjectStore, words: tuple[str, ...]) -> None:
    result = run(*words)

    assert result.exit_code == 0, (result.output, result.exception)
    if words[:2] != ("pipelines", "show"):
        for name in INVALID:
            assert f"pipeline {name}" in result.stderr
        assert "skipped" in result.stderr


def test_alerts_are_listed_without_reading_pipelines(lake: ObjectStore) -> None:
    result = run("alerts", "show")

    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize("words", [("batches", "store"), ("pipelines", "show", "store"), ("tables", "check", "store")])
def test_an_invalid_pipeline_raises_its_own_error(lake: ObjectStore, words: tuple[str, ...]) -> None:
    error = error_of(*words)

    assert error.condition == "SPEC_INVALID"
    assert "store/pipeline.yaml:2: colour: unknown key 'colour'" in error.message


def test_a_query_of_an_invalid_pipelines_tables_raises_its_error(lake: ObjectStore) -> None:
    assert "colour" in error_of("sql", "SELECT * FROM store.orders").message
    assert error_of("sql", "SELECT * FROM shop.orders").condition == "SQL_REFUSED"


def test_the_check_lists_all_errors_and_valid_pipelines(lake: ObjectStore) -> None:
    result = run("pipelines", "check")

    assert result.exit_code == 10
    listed = [line for line in result.stdout.splitlines() if line.startswith("include/")]
    assert [line.split("/")[2] for line in listed] == sorted(INVALID)
    assert "include/pipelines/store/pipeline.yaml:2: colour: unknown key 'colour'" in result.stdout
    assert "1 pipeline and 1 relay are valid." in result.stdout
    assert "5 errors in 5 files. Fix the named lines." in result.stdout


def test_the_check_prints_json(lake: ObjectStore) -> None:
    result = run("pipelines", "check", "--json")

    records = json.loads(result.stdout)
    assert result.exit_code == 10
    assert [record["pipeline"] for record in records["pipelines"]] == ["shop"]
    assert records["errors"][-1]["file"] == "include/pipelines/store/pipeline.yaml"
    assert records["errors"][-1]["line"] == 2
    assert records["errors"][-1]["key"] == "colour"
    assert records["warnings"] == []


@pytest.mark.parametrize("name", ["shop", *INVALID])
def test_the_stream_of_any_pipeline_can_be_stopped(lake: ObjectStore, airflow: AirflowServer, name: str) -> None:
    put_heartbeat(lake, paths.pipeline_control(name), name, state="ended")

    result = run("stop", name)

    assert result.exit_code == 0, (result.output, result.exception)
    assert [dag_id for dag_id, paused in airflow.paused.items() if paused] == [f"{name}__stream"]
    assert StopFlag(lake, paths.stop_request(paths.pipeline_control(name))).read() is not None


@pytest.mark.parametrize("name", INVALID)
@pytest.mark.parametrize("command", ["start", "restart"])
def test_a_stream_with_an_invalid_spec_stays_stopped(
    lake: ObjectStore, airflow: AirflowServer, command: str, name: str
) -> None:
    flag = StopFlag(lake, paths.stop_request(paths.pipeline_control(name)))
    flag.set(by="ada", reason="mending")

    error = error_of(command, name)

    assert error.condition in ("SPEC_INVALID", "SPEC_NOT_YAML")
    assert f"/{name}/pipeline.yaml:" in error.message
    assert flag.read() is not None
    assert airflow.requests == []


def test_a_valid_stream_starts_despite_invalid_ones(lake: ObjectStore, airflow: AirflowServer) -> None:
    airflow.paused["shop__stream"] = True

    assert run("start", "shop").exit_code == 0
    assert not airflow.paused["shop__stream"]


def test_a_missing_pipeline_is_unknown(lake: ObjectStore, airflow: AirflowServer) -> None:
    assert error_of("stop", "shopp").condition == "PIPELINE_UNKNOWN"
