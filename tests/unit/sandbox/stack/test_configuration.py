"""What the stack renders: its processes' environment, ports, the supervisor's configuration, Airflow's settings."""

from __future__ import annotations

import configparser
import json
import os
import shlex
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltaworks.errors import ConcurrencyError, ConfigError, ContractError
from sandbox.airflow.settings import database_path
from sandbox.stack.environment import loaded_env, process_environment, read_env, stack_variables, write_env
from sandbox.stack.home import StackHome
from sandbox.stack.ports import COMPONENTS, HOST, choose_ports
from sandbox.stack.secrets import load_or_create_secrets
from sandbox.stack.state import StackState, load_state, save_state, stack_lock
from sandbox.stack.supervisor import Program, render_config

PORTS = {"moto": 21001, "s3proxy": 21002, "airflow": 21003, "kafka": 21004, "kafka_controller": 21005}


@pytest.fixture
def home(tmp_path: Path) -> StackHome:
    found = StackHome.at(tmp_path / "stack home")
    found.create()
    return found


@pytest.fixture
def variables(home: StackHome) -> dict[str, str]:
    keys = load_or_create_secrets(home.secrets_file)
    found = stack_variables(home, ports=PORTS, keys=keys, java_home=Path("/opt/java"))
    write_env(home, found)
    return found


def test_the_stack_runs_what_was_asked_for_whatever_the_shell_says_later(
    home: StackHome, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = load_or_create_secrets(home.secrets_file)
    options = {"ports": PORTS, "keys": keys, "java_home": Path("/opt/java")}

    assert variables["DELTAWORKS_PIPELINES"] == ""
    assert stack_variables(home, pipelines=("edits", "games"), **options)["DELTAWORKS_PIPELINES"] == "edits,games"
    monkeypatch.setenv("DELTAWORKS_PIPELINES", "games")
    assert stack_variables(home, **options)["DELTAWORKS_PIPELINES"] == "games"
    assert process_environment(home)["DELTAWORKS_PIPELINES"] == ""


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_environment_is_read_back_as_it_was_written(home: StackHome, variables: dict[str, str]) -> None:
    assert read_env(home) == variables


def test_a_shell_reads_the_environment_file_as_we_do(home: StackHome, variables: dict[str, str]) -> None:
    script = f'. {shlex.quote(str(home.env_file))}; printf %s "$AIRFLOW_CONN_SPARK_DEFAULT"'

    answer = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True)

    assert answer.stdout == variables["AIRFLOW_CONN_SPARK_DEFAULT"]


def test_files_with_secrets_are_readable_by_the_owner_only(home: StackHome, variables: dict[str, str]) -> None:
    assert _mode(home.env_file) == 0o600
    assert _mode(home.secrets_file) == 0o600
    assert _mode(home.root) == 0o700


def test_secrets_outlive_a_restart_and_differ_between_stacks(home: StackHome, tmp_path: Path) -> None:
    first = load_or_create_secrets(home.secrets_file)

    assert load_or_create_secrets(home.secrets_file) == first
    assert load_or_create_secrets(tmp_path / "other.json") != first


def test_the_spark_connection_is_json_since_a_uri_loses_its_host(variables: dict[str, str]) -> None:
    connection = json.loads(variables["AIRFLOW_CONN_SPARK_DEFAULT"])

    assert connection == {"conn_type": "spark", "host": "local[2]"}


def test_the_spark_master_is_configurable(home: StackHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTAWORKS_SPARK_MASTER", "spark://master:7077")
    keys = load_or_create_secrets(home.secrets_file)

    found = stack_variables(home, ports=PORTS, keys=keys, java_home=Path("/opt/java"))

    assert json.loads(found["AIRFLOW_CONN_SPARK_DEFAULT"])["host"] == "spark://master:7077"


def test_airflow_is_told_where_it_is_and_to_bear_with_an_api_server_restart(
    home: StackHome, variables: dict[str, str]
) -> None:
    assert variables["AIRFLOW_HOME"] == str(home.airflow)
    assert str(database_path(home)) in variables["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
    assert variables["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:21003/execution/"
    assert variables["AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION"] == "False"
    heartbeats, seconds = (
        int(variables[f"AIRFLOW__WORKERS__{name}"]) for name in ("MAX_FAILED_HEARTBEATS", "MIN_HEARTBEAT_INTERVAL")
    )
    assert heartbeats * seconds >= 300


def test_every_server_of_the_stack_is_reached_on_this_machine_alone(variables: dict[str, str]) -> None:
    assert variables["AIRFLOW__API__HOST"] == variables["SPARK_LOCAL_IP"] == "127.0.0.1"
    for name in ("DELTAWORKS_LAKE_ENDPOINT", "DELTAWORKS_AWS_ENDPOINT", "AIRFLOW__API__BASE_URL"):
        assert variables[name].startswith("http://127.0.0.1:"), name


def test_processes_inherit_the_shell_but_not_its_airflow_aws_or_python_settings(
    home: StackHome, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__PARALLELISM", "1")
    monkeypatch.setenv("AIRFLOW__CORE__MAX_MAP_LENGTH", "1")
    monkeypatch.setenv("AWS_PROFILE", "production")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")

    found = process_environment(home)

    assert found["LANG"] == "de_DE.UTF-8"
    assert found["AIRFLOW__CORE__PARALLELISM"] == variables["AIRFLOW__CORE__PARALLELISM"]
    assert {"AIRFLOW__CORE__MAX_MAP_LENGTH", "AWS_PROFILE", "PYTHONDONTWRITEBYTECODE"}.isdisjoint(found)


def test_a_loaded_environment_is_undone_and_leaves_the_search_path_alone(
    home: StackHome, variables: dict[str, str]
) -> None:
    before = dict(os.environ)

    with loaded_env(home):
        assert os.environ["DELTAWORKS_LAKE_ENDPOINT"] == "http://127.0.0.1:21002"
        assert os.environ["PATH"] == before["PATH"]

    assert dict(os.environ) == before


def test_reading_a_stack_that_never_ran_says_how_to_start_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_env(StackHome.at(tmp_path / "none"))

    assert caught.value.condition == "STACK_NOT_PREPARED"
    assert "deltaworks up" in caught.value.hint


def test_pipelines_find_the_broker_of_the_stack_by_one_variable_where_it_has_one(
    home: StackHome, variables: dict[str, str]
) -> None:
    keys = load_or_create_secrets(home.secrets_file)

    found = stack_variables(home, ports=PORTS, keys=keys, java_home=Path("/opt/java"), with_broker=True)

    assert found == variables | {"DELTAWORKS_KAFKA_BOOTSTRAP": "127.0.0.1:21004"}
    assert "DELTAWORKS_KAFKA_BOOTSTRAP" not in variables


def test_clients_find_the_collector_of_the_stack_by_one_variable_where_it_has_one(
    home: StackHome, variables: dict[str, str]
) -> None:
    options = {
        "keys": load_or_create_secrets(home.secrets_file),
        "java_home": Path("/opt/java"),
        "with_collector": True,
    }

    found = stack_variables(home, ports=PORTS | {"collector": 21006}, **options)

    assert found == variables | {"DELTAWORKS_COLLECTOR_URL": "http://127.0.0.1:21006"}


def test_the_supervisor_restarts_and_ends_whole_groups_and_rotates_logs(home: StackHome) -> None:
    command = ("/opt/my python", "-m", "x", "--share", "100%")

    parsed = configparser.RawConfigParser(inline_comment_prefixes=None)
    parsed.read_string(render_config(home, [Program("worker", command, stop_seconds=7)]))
    program = parsed["program:worker"]

    assert shlex.split(program["command"].replace("%%", "%")) == list(command)
    assert program["autorestart"] == "true"
    assert program["autostart"] == "false"
    assert program["stopwaitsecs"] == "7"
    assert program["stopasgroup"] == program["killasgroup"] == "true"
    assert program["stdout_logfile"] == str(home.logs / "worker.log")
    assert program["stdout_logfile_maxbytes"].endswith("MB")
    assert parsed["unix_http_server"]["file"] == str(home.supervisor_socket)


def test_a_deep_checkout_gets_a_short_socket_path_of_its_own(tmp_path: Path) -> None:
    one, two = (StackHome.at(tmp_path / ("x" * 120) / name) for name in ("one", "two"))

    assert len(str(one.supervisor_socket)) < 100
    assert one.supervisor_socket != two.supervisor_socket


def test_the_state_is_read_back_as_it_was_saved(home: StackHome) -> None:
    state = StackState(ports=PORTS, paused_dags=("games__stream",), stopped_relays=("landing",))
    save_state(home, state)

    assert load_state(home) == state


def test_a_broken_state_file_is_named(home: StackHome) -> None:
    home.state_file.write_text("{")

    with pytest.raises(ContractError, match="STACK_STATE_BROKEN"):
        load_state(home)


def test_two_commands_never_work_on_one_stack_at_once(home: StackHome) -> None:
    with stack_lock(home), pytest.raises(ConcurrencyError, match="STACK_BUSY"), stack_lock(home):
        pass

    with stack_lock(home):
        assert home.lock_file.exists()


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_every_component_gets_a_port_of_its_own() -> None:
    ports = choose_ports({}, environ={})

    assert set(ports) == set(COMPONENTS)
    assert len(set(ports.values())) == len(COMPONENTS)


def test_ports_of_the_last_run_are_kept() -> None:
    first = choose_ports({}, environ={})

    assert choose_ports(first, environ={}) == first


def test_a_configured_port_outranks_the_kept_one() -> None:
    kept = choose_ports({}, environ={})
    wanted = choose_ports({}, environ={})["airflow"]

    ports = choose_ports(kept, environ={"DELTAWORKS_PORT_AIRFLOW": str(wanted)})

    assert ports == kept | {"airflow": wanted}


def test_a_kept_port_taken_by_somebody_else_is_refused_by_name(taken_port: int) -> None:
    kept = choose_ports({}, environ={}) | {"s3proxy": taken_port}

    with pytest.raises(ConfigError) as caught:
        choose_ports(kept, environ={})

    assert caught.value.condition == "PORT_IN_USE"
    assert str(taken_port) in caught.value.message
    assert "s3proxy" in caught.value.message
    assert "DELTAWORKS_PORT_S3PROXY" in caught.value.hint


def test_a_configured_port_taken_by_somebody_else_is_refused(taken_port: int) -> None:
    with pytest.raises(ConfigError, match="PORT_IN_USE"):
        choose_ports({}, environ={"DELTAWORKS_PORT_MOTO": str(taken_port)})


def test_a_port_whose_connections_only_wait_for_their_end_is_free() -> None:
    with socket.socket() as listener:
        # As every server sets it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, 0))
        listener.listen()
        port = listener.getsockname()[1]
        client = socket.create_connection((HOST, port))
        served, _ = listener.accept()
        # The side that closes first is the one that waits.
        served.close()
        client.close()

    assert choose_ports({"moto": port}, environ={})["moto"] == port


@pytest.mark.parametrize("text", ["http", "0", "65536", "-1"])
def test_what_is_not_a_port_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choose_ports({}, environ={"DELTAWORKS_PORT_MOTO": text})

    assert caught.value.condition == "PORT_INVALID"
    assert "DELTAWORKS_PORT_MOTO" in caught.value.message


def test_two_components_cannot_share_a_configured_port() -> None:
    port = str(choose_ports({}, environ={})["moto"])

    with pytest.raises(ConfigError, match="PORT_INVALID"):
        choose_ports({}, environ={"DELTAWORKS_PORT_MOTO": port, "DELTAWORKS_PORT_AIRFLOW": port})
