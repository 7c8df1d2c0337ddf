"""The login of Airflow's API: the variable first, then the environment, and their errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deltaworks.airflow_client.login import (
    CONNECTION_VARIABLE,
    AirflowLogin,
    airflow_login,
    login_from_variable,
)
from deltaworks.errors import ConfigError
from deltaworks.specs.environment import AirflowSpec, EnvironmentSpec
from deltaworks.specs.storage import AwsSpec, StorageSpec

VARIABLE = json.dumps({"conn_type": "http", "host": "http://airflow:8080", "login": "bo", "password": "of-bo"})


def environment(**airflow: object) -> EnvironmentSpec:
    lake = StorageSpec(root="file:///lake")
    declared = AirflowSpec.model_validate(airflow) if airflow else None
    return EnvironmentSpec(environment="prod", lake=lake, landing=lake, messaging=AwsSpec(), airflow=declared)


def test_the_declared_login_is_resolved_on_use(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = environment(url="env:AIRFLOW_URL", username="ada", password="env:PASSWORD_OF_ADA")
    with pytest.raises(ConfigError, match="REFERENCE_UNRESOLVED"):
        airflow_login(declared, {})
    monkeypatch.setenv("AIRFLOW_URL", "https://airflow.example.com/")
    monkeypatch.setenv("PASSWORD_OF_ADA", "of-ada")

    login = airflow_login(declared, {})

    assert (login.url, login.username, login.password) == ("https://airflow.example.com", "ada", "of-ada")
    assert login.source == "airflow in include/environments/prod.yaml"
    assert login.link_base == login.url


def test_a_variable_without_an_address_is_rejected_with_its_location(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_URL", "airflow.example.com")
    monkeypatch.setenv("TOKEN", "t")

    with pytest.raises(ConfigError, match="AIRFLOW_CONNECTION_INVALID") as raised:
        airflow_login(environment(url="env:AIRFLOW_URL", token="env:TOKEN"), {})

    assert "airflow in include/environments/prod.yaml: url: write the URL" in raised.value.message


def test_the_environment_variable_overrides_the_spec() -> None:
    declared = environment(url="https://airflow.example.com", token="env:TOKEN")

    assert airflow_login(declared, {CONNECTION_VARIABLE: VARIABLE}).url == "http://airflow:8080"


def test_without_a_login_the_error_names_the_declaration() -> None:
    with pytest.raises(ConfigError, match="AIRFLOW_CONNECTION_MISSING") as raised:
        airflow_login(environment(), {})

    assert "include/environments/prod.yaml has no `airflow`" in raised.value.message
    assert "password: env:NAME" in raised.value.hint


@pytest.mark.parametrize(
    ("value", "url", "name"),
    [
        (VARIABLE, "http://airflow:8080", "bo"),
        (
            '{"host": "airflow", "port": 8080, "schema": "https", "login": "bo", "password": "p"}',
            "https://airflow:8080",
            "bo",
        ),
        ('{"conn_type": "http", "host": "airflow", "login": "bo", "password": "p"}', "http://airflow", "bo"),
        ("http://bo:p%40ss@airflow:8080", "http://airflow:8080", "bo"),
        ("http://bo:p@airflow:8443/https", "https://airflow:8443", "bo"),
        ("https://bo:p@airflow", "https://airflow", "bo"),
        ("http://bo:p@https%3A%2F%2Fairflow.example.com", "https://airflow.example.com", "bo"),
        ('{"host": "https://airflow", "extra": {"token": "t"}}', "https://airflow", ""),
        ('{"host": "https://airflow", "extra": "{\\"token\\": \\"t\\"}"}', "https://airflow", ""),
    ],
)
def test_a_connection_is_parsed_as_airflow_writes_it(value: str, url: str, name: str) -> None:
    login = login_from_variable(value)

    assert (login.url, login.username) == (url, name)
    assert login.password or login.token


def test_a_password_in_a_uri_is_unquoted() -> None:
    assert login_from_variable("http://bo:p%40ss@airflow:8080").password == "p@ss"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("{host: airflow}", "neither JSON nor a URI"),
        ("airflow", "neither JSON nor a URI"),
        ('{"host": "http://airflow"}', "it needs host, login and password"),
        ('{"login": "bo", "password": "p"}', "it needs host, login and password"),
        ('{"host": "ftp://airflow", "login": "bo", "password": "p"}', "host: write the URL"),
    ],
)
def test_an_invalid_connection_variable_is_rejected_with_an_example(value: str, problem: str) -> None:
    with pytest.raises(ConfigError, match="AIRFLOW_CONNECTION_INVALID") as raised:
        login_from_variable(value)

    assert CONNECTION_VARIABLE in raised.value.message
    assert problem in raised.value.message
    assert '"conn_type": "http"' in raised.value.hint


def test_secrets_are_not_shown() -> None:
    login = AirflowLogin(url="http://airflow", source="tests", username="ada", password="of-ada", token="a-token")

    assert "of-ada" not in repr(login)
    assert "a-token" not in repr(login)


def test_an_unreadable_certificate_file_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "ca.pem"
    broken.write_text("no certificate")

    for path in (broken, tmp_path / "absent.pem"):
        login = AirflowLogin(url="https://airflow", source="tests", token="t", ca=str(path))
        with pytest.raises(ConfigError, match="AIRFLOW_CONNECTION_INVALID") as raised:
            login.tls_verification()
        assert str(path) in raised.value.message
