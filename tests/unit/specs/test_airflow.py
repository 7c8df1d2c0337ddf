"""The Airflow section of an environment: valid values, and errors for all others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deltaworks.errors import ConfigError
from deltaworks.specs.base import Reference
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.project import load_catalog
from tests.unit.specs.conftest import ENVIRONMENT

LOGIN = "username: ada, password: env:PASSWORD_OF_ADA"


def environment(make_project: Callable[..., Path], declared: str) -> EnvironmentSpec:
    return load_catalog(root=make_project(environment=f"{ENVIRONMENT}airflow: {{{declared}}}\n")).environment


def test_an_address_and_a_login_are_enough(make_project: Callable[..., Path]) -> None:
    airflow = environment(make_project, f"url: https://airflow.example.com/team/, {LOGIN}").airflow

    assert airflow is not None
    assert airflow.url == "https://airflow.example.com/team"
    assert airflow.password == Reference(scheme="env", name="PASSWORD_OF_ADA")
    assert airflow.verify


def test_all_values_can_be_references(make_project: Callable[..., Path]) -> None:
    airflow = environment(make_project, "url: env:AIRFLOW_URL, token: env:TOKEN, ca: env:CA").airflow

    assert airflow is not None
    assert airflow.url == Reference(scheme="env", name="AIRFLOW_URL")


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        (f"url: airflow.example.com, {LOGIN}", "airflow.url: write the URL of Airflow, such as https://"),
        (f"url: 'https://ada:pw@airflow', {LOGIN}", "airflow.url: the URL must not contain a login"),
        (f"url: 'https://airflow/af/api/v2', {LOGIN}", "airflow.url: the URL must end before /api, ? and #: write "),
        (f"url: 'https://airflow/?next=x', {LOGIN}", "write https://airflow"),
        ("url: https://airflow", "airflow: a login is required: username and password: env:NAME, or token: env:NAME"),
        ("url: https://airflow, username: ada", "airflow: a login is required"),
        (
            f"url: https://airflow, {LOGIN}, token: env:TOKEN",
            "airflow.token: give either token, or username and password",
        ),
        ("url: https://airflow, username: ada, password: hunter2", "airflow.password: write secrets and addresses"),
        (f"url: https://airflow, {LOGIN}, verify: false, ca: /ca.pem", "airflow.verify: verify: false ignores ca"),
        (f"url: 'http://airflow:8080', {LOGIN}, ca: /ca.pem", "airflow.ca: ca only applies to https://"),
        (f"url: https://airflow, {LOGIN}, adress: x", "airflow.adress: unknown key 'adress'"),
    ],
)
def test_invalid_settings_of_airflow_are_rejected_with_advice(
    make_project: Callable[..., Path], declared: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match="SPEC_INVALID") as raised:
        environment(make_project, declared)

    assert "environments/local.yaml:5" in raised.value.message
    assert problem in raised.value.message
    assert "hunter2" not in raised.value.message


def test_a_well_known_password_is_rejected_outside_local(
    make_project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_project(environment=f"{ENVIRONMENT}airflow: {{url: https://airflow, {LOGIN}}}\n")
    folder = root / "include" / "environments"
    (folder / "prod.yaml").write_text((folder / "local.yaml").read_text().replace("local", "prod", 1))
    monkeypatch.setenv("PASSWORD_OF_ADA", "admin")

    with pytest.raises(ConfigError, match=r"SECRET_WEAK.*airflow\.password: PASSWORD_OF_ADA"):
        load_catalog("prod", root=root)
