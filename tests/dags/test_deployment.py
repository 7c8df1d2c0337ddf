"""Outside `local` Airflow does not start with a development auth manager or weak secrets.

The starts of most services, marked `integration`, have their twin in the check of every service's secrets.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from airflow.configuration import conf

from deltaworks.airflow.deployment import check_deployment
from deltaworks.errors import ConfigError
from tests.integration.containers.compose_file import ServiceSpec, read_compose
from tests.processes import run_process
from tests.unit.docker.secrets_script import make_secrets

ROOT = Path(__file__).resolve().parents[2]
SAFE = {
    "AIRFLOW__CORE__FERNET_KEY": "y1lE9mVYVYzv1oSVjK3cV3n9v2x8qJb0z5tY4aWkQ0E=",
    "AIRFLOW__API_AUTH__JWT_SECRET": "f31ab0c1",
    "AIRFLOW__API__SECRET_KEY": "9c1ab5d0",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "postgresql+psycopg2://airflow:e61ab0@postgres/airflow",
    "AIRFLOW_ADMIN_PASSWORD": "0d91cc",
    "AIRFLOW_CONN_DELTAWORKS_AIRFLOW": '{"conn_type": "http", "login": "admin", "password": "0d91cc"}',
    "AIRFLOW__CORE__AUTH_MANAGER": "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager",
}
SIMPLE = "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager"


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name, value in SAFE.items():
        monkeypatch.setenv(name, value)
    assert conf.get("core", "auth_manager") == SAFE["AIRFLOW__CORE__AUTH_MANAGER"]
    return {**SAFE, "DELTAWORKS_ENVIRONMENT": "production"}


def start_error(variables: dict[str, str], *, command: str | None = None) -> str | None:
    """Returns the condition with which Airflow's start fails; None if it starts."""
    try:
        check_deployment(variables, command=command)
    except ConfigError as error:
        return error.condition
    return None


def test_a_configuration_with_an_auth_manager_and_random_secrets_starts(variables: dict[str, str]) -> None:
    assert start_error(variables) is None
    assert start_error({**variables, "AIRFLOW_ADMIN_PASSWORD": "admin"}) == "SECRET_WEAK"


@pytest.mark.parametrize("allowed", [None, "", "false"])
def test_the_simple_auth_manager_is_rejected_unless_allowed(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, allowed: str | None
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__AUTH_MANAGER", SIMPLE)
    if allowed is not None:
        variables["DELTAWORKS_ALLOW_SIMPLE_AUTH"] = allowed

    with pytest.raises(ConfigError) as caught:
        check_deployment(variables)

    assert caught.value.condition == "SIMPLE_AUTH_REFUSED"
    assert start_error({**variables, "DELTAWORKS_ALLOW_SIMPLE_AUTH": "true"}) is None
    assert start_error({**variables, "DELTAWORKS_ENVIRONMENT": "local"}) is None


def test_a_simple_auth_manager_with_all_admins_is_always_rejected(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__AUTH_MANAGER", SIMPLE)
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "true")

    with pytest.raises(ConfigError, match="makes every visitor an admin"):
        check_deployment({**variables, "DELTAWORKS_ALLOW_SIMPLE_AUTH": "true"})


@pytest.mark.parametrize(
    ("variable", "value", "place"),
    [
        ("AIRFLOW__CORE__FERNET_KEY", "", "[core] fernet_key"),
        ("AIRFLOW__CORE__FERNET_KEY", "changeme", "[core] fernet_key"),
        ("AIRFLOW__API_AUTH__JWT_SECRET", "secret", "[api_auth] jwt_secret"),
        ("AIRFLOW__API__SECRET_KEY", "changeme", "[api] secret_key"),
        ("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://airflow:airflow@postgres/airflow", "sql_alchemy_conn"),
        ("AIRFLOW_ADMIN_PASSWORD", "admin", "the login"),
        ("AIRFLOW_CONN_DELTAWORKS_AIRFLOW", '{"conn_type": "http", "login": "admin", "password": "admin"}', "login"),
        ("AIRFLOW_CONN_DELTAWORKS_AIRFLOW", "http://admin:admin@airflow", "login"),
    ],
)
def test_a_weak_secret_is_rejected_with_its_option_and_variable(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, variable: str, value: str, place: str
) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(ConfigError) as caught:
        check_deployment({**variables, variable: value})

    assert caught.value.condition == "SECRET_WEAK"
    assert place in caught.value.message
    assert variable in caught.value.message
    check_deployment({**variables, variable: value, "DELTAWORKS_ENVIRONMENT": "local"})


@pytest.mark.parametrize(("allowed", "starts"), [("", False), ("true", True)])
def test_an_unsafe_airflow_process_ends_at_its_start(tmp_path: Path, allowed: str, starts: bool) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "DELTAWORKS"))}
    environment = (
        inherited
        | SAFE
        | {
            "AIRFLOW_HOME": str(tmp_path),
            "AIRFLOW__CORE__AUTH_MANAGER": SIMPLE,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db",
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
            "DELTAWORKS_ENVIRONMENT": "compose",
            "DELTAWORKS_ALLOW_SIMPLE_AUTH": allowed,
            "PYTHONPATH": str(ROOT / "include"),
        }
    )

    ran = run_process(
        [sys.executable, "-m", "airflow", "config", "get-value", "core", "executor"], env=environment, cwd=tmp_path
    )

    assert (ran.returncode == 0) is starts, ran.stderr[-2000:]
    assert ("SIMPLE_AUTH_REFUSED" in ran.stderr) is not starts


@pytest.mark.parametrize(
    ("variable", "in_need", "not_in_need"),
    [
        ("AIRFLOW__API_AUTH__JWT_SECRET", ("api-server", "scheduler"), ("dag-processor", "triggerer", "db")),
        ("AIRFLOW__API__SECRET_KEY", ("api-server", "scheduler", "triggerer"), ("dag-processor", "db")),
        ("AIRFLOW__CORE__FERNET_KEY", ("api-server", "scheduler", "triggerer", "dag-processor", "db"), ()),
    ],
)
def test_a_missing_secret_is_rejected_only_in_processes_that_need_it(
    variables: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    in_need: tuple[str, ...],
    not_in_need: tuple[str, ...],
) -> None:
    # Airflow's configuration is empty then, too.
    monkeypatch.setenv(variable, "")
    del variables[variable]

    assert {command: start_error(variables, command=command) for command in in_need} == dict.fromkeys(
        in_need, "SECRET_WEAK"
    )
    assert {command: start_error(variables, command=command) for command in not_in_need} == dict.fromkeys(not_in_need)
    # A variable set to an empty value is an error in every environment.
    blank = {**variables, variable: ""}
    assert start_error(blank, command="dag-processor") == "SECRET_WEAK"


SERVICES = ("airflow-apiserver", "airflow-init", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer")


def services_with_secrets(folder: Path) -> dict[str, ServiceSpec]:
    """Returns the services of the containers with secrets made for them."""
    (folder / "docker").mkdir()
    for name in ("docker-compose.yaml", "docker/local.env"):
        (folder / name).write_text((ROOT / name).read_text())
    make_secrets(folder / "docker" / "secrets")
    return dict(read_compose(folder / "docker-compose.yaml", shell={}).services)


def command_of(service: str, spec: ServiceSpec) -> str:
    (command, *_) = ("db",) if service == "airflow-init" else spec.command or ()
    return command


def test_every_service_of_the_containers_is_given_the_secrets_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = services_with_secrets(tmp_path)
    for service in SERVICES:
        spec = services[service]
        with monkeypatch.context() as patched:
            # Without a variable, Airflow would take the secret of the configuration in its home folder.
            for name in SAFE:
                patched.setenv(name, "")
            for name, value in spec.variables.items():
                patched.setenv(name, value)

            assert start_error(dict(spec.variables), command=command_of(service, spec)) is None, service

            patched.setenv("AIRFLOW__CORE__FERNET_KEY", "")
            assert start_error(dict(spec.variables), command=command_of(service, spec)) == "SECRET_WEAK", service


@pytest.mark.parametrize(
    "service", [SERVICES[0], *(pytest.param(service, marks=pytest.mark.integration) for service in SERVICES[1:])]
)
def test_every_service_of_the_containers_starts_with_the_secrets_it_is_given(tmp_path: Path, service: str) -> None:
    spec = services_with_secrets(tmp_path)[service]
    here = {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "include"),
    }
    ran = run_process(
        [sys.executable, "-m", "airflow", command_of(service, spec), "--help"],
        env={**spec.variables, **here},
        cwd=tmp_path,
    )

    assert ran.returncode == 0, ran.stderr[-2000:]
