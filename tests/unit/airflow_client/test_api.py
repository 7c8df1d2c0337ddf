"""The client of Airflow's API against a test server: logins, rejections, pages, outages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from deltaworks.airflow_client import requests as airflow_requests
from deltaworks.airflow_client.api import AirflowApi
from deltaworks.airflow_client.login import AirflowLogin
from deltaworks.errors import ConfigError, DeltaworksError, TransientError
from tests.airflow_server import AirflowServer, airflow_server

DAG = "games__stream"


@pytest.fixture
def server() -> Iterator[AirflowServer]:
    with airflow_server(DAG, "edits__stream", "games__restore") as server:
        yield server


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow_requests, "_RETRY_SECONDS", 0.05)


def login(server: AirflowServer) -> AirflowLogin:
    name, password = server.login
    return AirflowLogin(url=server.url, source="the tests", username=name, password=password)


def api(server: AirflowServer, *, patient: bool = True) -> AirflowApi:
    return AirflowApi(login(server), timeout_seconds=0.1, should_retry=patient)


def error_of(server: AirflowServer, *, dag_id: str = DAG) -> DeltaworksError:
    with api(server) as client, pytest.raises(DeltaworksError) as raised:
        client.pause(dag_id)
    return raised.value


def test_requests_to_a_busy_server_are_retried(server: AirflowServer) -> None:
    server.slow = 3

    with api(server) as client:
        client.pause(DAG)

    assert server.slow == 0
    assert server.paused[DAG]


def test_a_busy_server_needs_a_longer_retry_time(server: AirflowServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow_requests, "_BUSY_RETRY_SECONDS", 0.05)
    server.slow = 3

    error = error_of(server)

    assert error.condition == "AIRFLOW_UNREACHABLE"
    assert f"no answer to PATCH /dags/{DAG} within" in error.message


def test_requests_are_retried_while_the_server_restarts(server: AirflowServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow_requests, "_RETRY_SECONDS", 5.0)
    server.broken = 1

    with api(server) as client:
        client.pause(DAG)

    assert server.paused[DAG]


def test_an_unreachable_server_is_given_up_early(server: AirflowServer) -> None:
    server.server_close()

    error = error_of(server)

    assert isinstance(error, TransientError)
    assert error.condition == "AIRFLOW_UNREACHABLE"
    assert "the tests" in error.hint, "it says who named this address"


def test_a_client_without_retries_tries_once(server: AirflowServer) -> None:
    server.slow = 3

    with api(server, patient=False) as client, pytest.raises(TransientError, match="no usable response"):
        client.set_run_note(DAG, "r", "well")

    assert server.slow == 2


def test_a_note_changes_only_the_note(server: AirflowServer) -> None:
    run_id = "scheduled__2026-03-01T09:00:00+00:00"

    with api(server) as client:
        client.set_run_note(DAG, run_id, "well")

    path = f"/api/v2/dags/{DAG}/dagRuns/scheduled__2026-03-01T09%3A00%3A00%2B00%3A00?update_mask=note"
    assert server.changes() == [("PATCH", path, {"note": "well"})]


@pytest.mark.parametrize(
    "answer", [(401, "Token Expired"), (403, "Invalid JWT token")], ids=["its time is over", "signed by another secret"]
)
def test_a_rejected_token_is_renewed_once_and_the_request_repeated(
    server: AirflowServer, answer: tuple[int, str]
) -> None:
    server.token_refusal = (answer[0], {"detail": answer[1]})

    with api(server) as client:
        client.pause(DAG)
        server.invalidate_tokens()
        client.unpause(DAG)

    assert server.issued == 2
    assert not server.paused[DAG]


def test_a_given_token_is_used_without_login_until_it_expires(
    server: AirflowServer,
) -> None:
    server.tokens.add("made-elsewhere")
    ready = AirflowLogin(url=server.url, source="the tests", token="made-elsewhere")

    with AirflowApi(ready) as client:
        client.pause(DAG)
        server.invalidate_tokens()
        with pytest.raises(ConfigError, match=r"AIRFLOW_LOGIN_REFUSED.*which may have expired"):
            client.unpause(DAG)

    assert server.issued == 0


def test_a_wrong_password_is_rejected_immediately_and_not_shown(server: AirflowServer) -> None:
    wrong = dataclasses.replace(login(server), password="guessed-wrong")

    with AirflowApi(wrong) as client, pytest.raises(ConfigError, match="AIRFLOW_LOGIN_REFUSED") as raised:
        client.pause(DAG)

    assert "ada" in raised.value.message
    assert "guessed-wrong" not in str(raised.value) + repr(wrong)
    assert [path for _, path, _ in server.requests] == ["/auth/token"]


@pytest.mark.parametrize(
    ("forbidden", "permission"),
    [("PATCH /dags/games__stream", "edit the DAG"), ("POST /dags/games__stream/dagRuns", "trigger the DAG")],
)
def test_a_forbidden_request_names_the_missing_permission(
    server: AirflowServer, forbidden: str, permission: str
) -> None:
    server.forbidden = (forbidden,)

    with api(server) as client, pytest.raises(ConfigError) as raised:
        client.pause(DAG) if forbidden.startswith("PATCH") else client.trigger(DAG)

    assert raised.value.condition == "AIRFLOW_FORBIDDEN"
    assert raised.value.message.startswith(f"ada (from the tests) may not {permission}")
    assert "role User" in raised.value.hint


def test_an_unknown_dag_is_rejected_with_the_closest_match_and_a_hint(server: AirflowServer) -> None:
    error = error_of(server, dag_id="game__stream")

    assert error.condition == "AIRFLOW_DAG_UNKNOWN"
    assert f"did you mean {DAG!r}" in error.message
    assert "within about a minute" in error.hint


def test_the_closest_dag_is_searched_on_all_pages(server: AirflowServer) -> None:
    server.page = 1

    assert "games__stream" in error_of(server, dag_id="game__stream").message


def test_a_dag_with_an_import_error_is_rejected_with_that_error(server: AirflowServer) -> None:
    server.import_errors = [
        {"filename": "gold.py", "stack_trace": "Traceback\n  ...\nValueError: another one"},
        {"filename": "streams.py", "stack_trace": "Traceback\n  ...\nModuleNotFoundError: No module named 'x'\n"},
    ]

    error = error_of(server, dag_id="new__stream")

    assert "streams.py: ModuleNotFoundError: No module named 'x'" in error.message
    assert "gold.py" not in error.message
    assert "import error" in error.hint


def test_forbidden_import_errors_do_not_hide_the_error(server: AirflowServer) -> None:
    server.forbidden = ("GET /importErrors",)

    assert error_of(server, dag_id="new__stream").condition == "AIRFLOW_DAG_UNKNOWN"


def test_a_missing_run_is_not_reported_as_a_missing_dag(server: AirflowServer) -> None:
    with api(server) as client, pytest.raises(ConfigError) as raised:
        client.dag_run(DAG, "no-such-run")

    assert raised.value.condition == "AIRFLOW_REFUSED"
    assert "no-such-run" in raised.value.message


def test_a_run_triggered_without_a_response_is_not_triggered_twice(server: AirflowServer) -> None:
    with api(server) as client:
        first = client.trigger(DAG, conf={"dry_run": True}, run_id="once")
        again = client.trigger(DAG, conf={"dry_run": True}, run_id="once")

    assert (first.run_id, again.run_id) == ("once", "once")
    assert len(server.runs) == 1


def test_a_rejection_contains_airflows_detail(server: AirflowServer) -> None:
    with api(server) as client, pytest.raises(ConfigError, match=r"AIRFLOW_REFUSED.*Invalid input for param dry_run"):
        client.trigger(DAG, conf={"dry_run": "perhaps"})


def test_an_address_without_airflow_is_reported(server: AirflowServer) -> None:
    elsewhere = dataclasses.replace(login(server), url=f"{server.url}/elsewhere")

    with AirflowApi(elsewhere) as client, pytest.raises(DeltaworksError) as raised:
        client.pause(DAG)

    assert raised.value.condition in ("AIRFLOW_REFUSED", "AIRFLOW_LOGIN_REFUSED")
    assert "the tests" in raised.value.hint


def test_a_session_that_has_ended_asks_the_person_to_log_in(server: AirflowServer) -> None:
    session = AirflowLogin(
        url=server.url, public_url="/air", source="your session in Airflow", token="old", is_session=True
    )

    with AirflowApi(session) as client, pytest.raises(ConfigError) as raised:
        client.dag_params(DAG)

    assert (raised.value.condition, raised.value.hint) == ("AIRFLOW_LOGIN_REFUSED", "Log in to Airflow again.")
    assert client.run_link(DAG, "r/1") == f"/air/dags/{DAG}/runs/r%2F1"


def test_the_health_of_an_unreachable_server_is_an_error(server: AirflowServer) -> None:
    server.server_close()

    with api(server) as client, pytest.raises(TransientError, match="AIRFLOW_UNREACHABLE"):
        client.health()
