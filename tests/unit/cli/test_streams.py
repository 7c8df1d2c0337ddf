"""`deltaworks stop`, `start` and `restart`: first the flag, then Airflow, with a report of both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake
from typer.testing import CliRunner

from deltaworks.airflow_client import requests as airflow_requests
from deltaworks.cli import app
from deltaworks.cli import context as cli_context
from deltaworks.control import paths
from deltaworks.control.backoff import RestartBackoff
from deltaworks.control.health.heartbeat import StopFlag
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore
from deltaworks.errors import DeltaworksError
from deltaworks.specs.project import load_catalog
from deltaworks.testing import write_files
from tests.airflow_server import AirflowServer, airflow_server
from tests.commands import output_of as invoke
from tests.declared_airflow import DAG, declare_airflow, stop_flag, write_heartbeat
from tests.unit.specs.conftest import ENVIRONMENT, write_project
from tests.unit.specs.test_environment_checks import REMEDIATION, RULE, SQL


@pytest.fixture
def airflow() -> Iterator[AirflowServer]:
    with airflow_server(DAG, "landing__relay") as server:
        yield server


@pytest.fixture
def lake(tmp_path: Path, airflow: AirflowServer, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The lake of a project whose environment declares the server."""
    monkeypatch.setattr(cli_context, "apply_settings", lambda: None)
    monkeypatch.setattr(airflow_requests, "_RETRY_SECONDS", 0.05)
    return declare_airflow(tmp_path, airflow, monkeypatch)


@pytest.fixture
def flag(lake: ObjectStore) -> StopFlag:
    return stop_flag(lake)


def rejected(*arguments: str) -> tuple[str, DeltaworksError]:
    """Output of a command, and its error."""
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, DeltaworksError), result.output
    return result.output, result.exception


def test_stop_uses_the_airflow_of_the_environment(airflow: AirflowServer, flag: StopFlag, lake: ObjectStore) -> None:
    said = invoke("stop", "shop", "--reason", "a new key")

    assert airflow.paused[DAG]
    request = flag.read()
    assert request is not None
    assert request.reason == "a new key"
    assert "shop is stopped." in said
    assert "deltaworks start shop" in said


def test_a_relay_is_stopped_and_started_the_same_way(airflow: AirflowServer, lake: ObjectStore) -> None:
    relay = StopFlag(lake, paths.stop_request(paths.relay_control("landing")))

    invoke("stop", "landing")
    assert (airflow.paused["landing__relay"], relay.read() is not None) == (True, True)

    invoke("start", "landing")
    assert (airflow.paused["landing__relay"], relay.read() is not None) == (False, False)


@pytest.mark.parametrize(
    ("dag", "folder"),
    [
        ("shop__stream", paths.pipeline_control("shop")),
        ("landing__relay", paths.relay_control("landing")),
        ("shop__feeds", paths.feeds_control("shop")),
        ("deltaworks__rules", paths.rules_control()),
        ("shift__remediation", paths.remediation_control("shift")),
    ],
)
def test_long_running_processes_are_stopped_and_started_by_dag_id(
    airflow: AirflowServer, lake: ObjectStore, tmp_path: Path, dag: str, folder: str
) -> None:
    file = tmp_path / "include" / "environments" / "local.yaml"
    file.write_text(file.read_text() + yaml.safe_dump({"remediations": [REMEDIATION | {"name": "shift"}]}))
    shop = tmp_path / "include" / "pipelines" / "shop"
    write_files(shop, {"pipeline.yaml": (shop / "pipeline.yaml").read_text() + RULE, "slow.sql": SQL})
    airflow.paused[dag] = False
    flag = StopFlag(lake, paths.stop_request(folder))

    said = invoke("stop", dag)
    assert (airflow.paused[dag], flag.read() is not None) == (True, True)
    assert f"deltaworks start {dag.removesuffix('__stream')}" in said

    invoke("start", dag)
    assert (airflow.paused[dag], flag.read() is not None) == (False, False)


@pytest.mark.parametrize(
    "name", ["judging", "shop__rules", "store__feeds", "none__remediation", "group__shop", "shops"]
)
def test_unknown_names_are_rejected_and_nothing_is_stopped(lake: ObjectStore, name: str) -> None:
    _, error = rejected("stop", name)

    assert error.condition in ("PIPELINE_UNKNOWN", "REMEDIATION_UNKNOWN")
    assert lake.list("control/") == []


def test_a_relay_in_a_pod_is_stopped_and_started_by_its_flag_alone(
    airflow: AirflowServer, lake: ObjectStore, tmp_path: Path
) -> None:
    file = tmp_path / "include" / "environments" / "local.yaml"
    file.write_text(file.read_text() + "kubernetes: {image: deltaworks:1}\n")
    flag = StopFlag(lake, paths.stop_request(paths.relay_control("landing")))

    stopped = invoke("stop", "landing", "--wait-seconds", "0")
    assert flag.read() is not None
    started = invoke("start", "landing")

    assert flag.read() is None
    assert "landing is stopped." in stopped
    assert "landing is released; its pod starts it within seconds." in started
    assert airflow.requests == []


def test_the_flag_is_set_before_airflow_is_called(
    airflow: AirflowServer, flag: StopFlag, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags_at_requests: list[bool] = []
    answer = airflow.finish_request

    def look_first(*arguments: object) -> None:
        flags_at_requests.append(flag.read() is not None)
        answer(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(airflow, "finish_request", look_first)

    invoke("stop", "shop")

    assert flags_at_requests
    assert all(flags_at_requests)


def test_without_airflow_the_flag_stops_the_stream_and_the_command_names_missing_steps(
    airflow: AirflowServer, flag: StopFlag
) -> None:
    airflow.server_close()

    said, error = rejected("stop", "shop")

    assert flag.read() is not None
    assert "Stop flag of shop is set" in said
    assert f"{DAG} is not paused (AIRFLOW_UNREACHABLE)" in said
    assert (error.condition, error.exit_code) == ("AIRFLOW_UNREACHABLE", 21)
    assert error.message.startswith("shop has ended with its stop flag set, but shop__stream could not be paused")
    assert "airflow in include/environments/local.yaml" in error.hint
    assert "`deltaworks stop shop` again, or pause shop__stream in Airflow" in error.hint


@pytest.mark.parametrize(
    ("command", "done"), [("stop", "has ended with its stop flag set"), ("start", "The stop of shop is cleared")]
)
def test_a_missing_permission_to_pause_is_named(
    airflow: AirflowServer, flag: StopFlag, command: str, done: str
) -> None:
    airflow.forbidden = ("PATCH",)

    _, error = rejected(command, "shop")

    assert (error.condition, error.exit_code) == ("AIRFLOW_FORBIDDEN", 10)
    assert done in error.message
    assert "may not edit the DAG" in error.message
    assert (flag.read() is not None) == (command == "stop")


def test_a_stream_without_a_dag_in_airflow_is_still_stopped(airflow: AirflowServer, flag: StopFlag) -> None:
    airflow.paused = {"shops__stream": False}

    _, error = rejected("stop", "shop")

    assert error.condition == "AIRFLOW_DAG_UNKNOWN"
    assert "did you mean 'shops__stream'" in error.message
    assert flag.read() is not None


def test_without_a_declared_airflow_the_flag_is_set_and_the_setting_is_named(
    lake: ObjectStore, flag: StopFlag, tmp_path: Path
) -> None:
    write_project(tmp_path, environment=ENVIRONMENT.replace("file:///lake", f"file://{tmp_path}/lake"))

    _, error = rejected("stop", "shop")

    assert flag.read() is not None
    assert error.condition == "AIRFLOW_CONNECTION_MISSING"
    assert "airflow: {url:" in error.hint


def test_the_environment_variable_overrides_the_spec(
    lake: ObjectStore, airflow: AirflowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with airflow_server(DAG) as other:
        monkeypatch.setenv("AIRFLOW_CONN_DELTAWORKS_AIRFLOW", other.connection())
        invoke("stop", "shop")

        assert other.paused[DAG]
    assert airflow.requests == []


def test_a_stream_that_does_not_end_in_time_keeps_its_flag(
    lake: ObjectStore, airflow: AirflowServer, flag: StopFlag
) -> None:
    write_heartbeat(lake, "running")

    _, error = rejected("stop", "shop", "--wait-seconds", "0")

    assert error.condition == "STREAM_STILL_RUNNING"
    assert "Its stop flag stays set." in error.message
    assert flag.read() is not None
    assert airflow.paused[DAG]


def test_start_withdraws_the_stop_and_cancels_the_backoff(
    lake: ObjectStore, airflow: AirflowServer, flag: StopFlag
) -> None:
    airflow.paused[DAG] = True
    flag.set(by="tests", reason="to see it start")
    backoff = RestartBackoff(lake, paths.pipeline_control("shop", "failures.json"))
    backoff.record_failure(retryable=False)
    assert backoff.remaining_seconds() > 200

    invoke("start", "shop")

    assert flag.read() is None
    assert backoff.remaining_seconds() == 0.0
    assert not airflow.paused[DAG]


def test_restart_ends_the_stream_and_lets_it_run_again(
    lake: ObjectStore, airflow: AirflowServer, flag: StopFlag
) -> None:
    write_heartbeat(lake, "ended")

    said = invoke("restart", "shop")

    assert "Stop flag of shop is set" in said
    assert "shop is released" in said
    assert flag.read() is None
    assert [body for _, _, body in airflow.changes()] == [{"is_paused": False}], "it is never paused"


def test_a_restart_that_does_not_end_in_time_stays_stopped(lake: ObjectStore, flag: StopFlag) -> None:
    write_heartbeat(lake, "running")

    _, error = rejected("restart", "shop", "--wait-seconds", "0")

    assert flag.read() is not None
    assert "`deltaworks start shop` clears the stop" in error.hint


def test_without_airflow_a_stream_is_restarted_by_its_flag(airflow: AirflowServer, flag: StopFlag) -> None:
    airflow.server_close()

    _, error = rejected("restart", "shop")

    assert flag.read() is None
    assert error.condition == "AIRFLOW_UNREACHABLE"
    assert "While it is paused, no run starts" in error.message


#: Edits of pipeline.yaml: the text, and what replaces it.
EDITS = {
    "none": ("owner: tests", "owner: tests"),
    "owner": ("owner: tests", "owner: others"),
    "path": ("{name: amount, path: amount,", "{name: amount, path: total,"),
    "type": ('"decimal(12,2)"', "double"),
    "bucket": ("bucket: landing", "bucket: other"),
    "batch size": ("max_bytes_per_batch: 64MiB", "max_bytes_per_batch: 32MiB"),
}


@pytest.mark.parametrize("verb", ["start", "restart"])
@pytest.mark.parametrize("has_rows", [True, False])
@pytest.mark.parametrize("edit", EDITS)
def test_a_start_is_refused_before_anything_is_stopped_exactly_if_diff_says_so(  # noqa: PLR0917 - fixtures, parameters
    lake: ObjectStore, airflow: AirflowServer, flag: StopFlag, tmp_path: Path, verb: str, has_rows: bool, edit: str
) -> None:
    PipelineHome(lake, "shop").specs.record_start(load_catalog("local", root=tmp_path).pipeline("shop"), owner_epoch=1)
    if has_rows:
        write_deltalake(str(tmp_path / "lake" / paths.table("shop", "orders")), pa.table({"amount": [1]}))
    write_heartbeat(lake, "ended")
    file = tmp_path / "include" / "pipelines" / "shop" / "pipeline.yaml"
    text = file.read_text()
    assert EDITS[edit][0] in text
    file.write_text(text.replace(*EDITS[edit]))
    if verb == "start":
        flag.set(by="ada", reason="test")
    refused = CliRunner().invoke(app, ["pipelines", "diff", "shop"]).exit_code == 11
    assert refused == (has_rows and edit in ("path", "type", "bucket"))

    if not refused:
        assert "shop is released" in invoke(verb, "shop")
        return
    before = flag.read()
    said, error = rejected(verb, "shop")

    assert (said, error.condition) == ("", "SPEC_CHANGE_UNSAFE")
    assert error.hint.startswith("Put ")
    assert "back in pipeline.yaml, then `deltaworks start shop`. Otherwise: " in error.hint
    assert flag.read() == before
    assert airflow.requests == []
    file.write_text(text)
    assert "shop is released" in invoke(verb, "shop")


def test_a_refused_edit_may_still_be_stopped(lake: ObjectStore, flag: StopFlag, tmp_path: Path) -> None:
    PipelineHome(lake, "shop").specs.record_start(load_catalog("local", root=tmp_path).pipeline("shop"), owner_epoch=1)
    write_deltalake(str(tmp_path / "lake" / paths.table("shop", "orders")), pa.table({"amount": [1]}))
    file = tmp_path / "include" / "pipelines" / "shop" / "pipeline.yaml"
    file.write_text(file.read_text().replace(*EDITS["type"]))

    invoke("stop", "shop")

    assert flag.read() is not None
