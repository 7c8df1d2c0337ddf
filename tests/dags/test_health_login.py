"""The health check's login to Airflow: its connection or the environment's declaration."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from deltaworks.airflow.health_dags import airflow_api
from deltaworks.errors import ConfigError
from deltaworks.specs.environment import AirflowSpec, EnvironmentSpec
from deltaworks.specs.storage import AwsSpec, StorageSpec
from tests.airflow_server import airflow_server

VARIABLE = "AIRFLOW_CONN_DELTAWORKS_AIRFLOW"


def environment(**airflow: Any) -> EnvironmentSpec:
    lake = StorageSpec(root="file:///lake")
    declared = AirflowSpec.model_validate(airflow) if airflow else None
    return EnvironmentSpec(environment="prod", lake=lake, landing=lake, messaging=AwsSpec(), airflow=declared)


@pytest.fixture
def without_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """An Airflow without the connection."""

    def missing(conn_id: str) -> Any:
        raise AirflowNotFoundException(conn_id)

    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(BaseHook, "get_connection", missing)


@pytest.mark.usefixtures("without_connection")
def test_without_a_connection_the_environments_airflow_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with airflow_server("games__stream") as server:
        monkeypatch.setenv("PASSWORD_OF_ADA", server.login[1])
        declared = environment(url=server.url, username=server.login[0], password="env:PASSWORD_OF_ADA")

        with airflow_api(declared, should_retry=False) as api:
            api.pause("games__stream")

        assert server.paused["games__stream"]


@pytest.mark.usefixtures("without_connection")
def test_without_any_login_hung_streams_are_not_restarted_and_the_log_has_a_hint() -> None:
    with pytest.raises(ConfigError, match="AIRFLOW_CONNECTION_MISSING"):
        airflow_api(environment())


def test_a_connection_of_airflow_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = (
        '{"conn_type": "http", "host": "airflow", "port": 8443, "schema": "https", "login": "bo", "password": "p"}'
    )
    monkeypatch.setenv(VARIABLE, connection)

    with airflow_api(environment(url="https://elsewhere", token="env:TOKEN")) as api:
        assert (api.login.url, api.login.username) == ("https://airflow:8443", "bo")
        assert api.login.source == "the connection deltaworks_airflow"
