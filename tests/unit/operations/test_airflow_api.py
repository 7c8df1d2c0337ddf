"""A server that is too busy to answer is asked again for longer than one that is not there."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from deltaworks.errors import TransientError
from deltaworks.operations import airflow_api as rest_api
from deltaworks.operations.airflow_api import AirflowApi


class Server(ThreadingHTTPServer):
    """Answers as Airflow does, once it has been asked `slow` times without an answer."""

    def __init__(self, slow: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.slow = slow
        self.closing = threading.Event()
        self.patched: list[tuple[str, Any]] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if self.server.slow > 0:
            self.server.slow -= 1
            self.server.closing.wait(10)
            return
        run = {"dag_id": "d", "dag_run_id": "r", "state": "success", "start_date": None, "end_date": None, "conf": {}}
        self._answer(run)

    def do_PATCH(self) -> None:
        if self.server.slow > 0:
            self.do_GET()
            return
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.patched.append((self.path, json.loads(body)))
        self._answer({})

    def do_POST(self) -> None:
        self._answer({"access_token": "t"})

    def _answer(self, body: dict[str, object]) -> None:
        said = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(slow=3) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield server
        server.closing.set()
        server.shutdown()
        serving.join()


def api(server: Server) -> AirflowApi:
    return AirflowApi(f"http://127.0.0.1:{server.server_port}", "admin", "secret", timeout_seconds=0.1)


def test_a_busy_server_is_waited_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_api, "_RETRY_SECONDS", 0.05)

    with api(server) as client:
        assert client.dag_run("d", "r").state == "success"

    assert server.slow == 0


def test_with_the_patience_for_a_server_that_is_not_there_a_busy_one_is_given_up(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_RETRY_SECONDS", "_BUSY_RETRY_SECONDS"):
        monkeypatch.setattr(rest_api, name, 0.05)

    with api(server) as client, pytest.raises(TransientError) as raised:
        client.dag_run("d", "r")

    assert raised.value.condition == "AIRFLOW_UNREACHABLE"
    assert "no answer to GET /dags/d/dagRuns/r within" in raised.value.message


def test_one_that_is_not_there_is_given_up_early(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_api, "_RETRY_SECONDS", 0.05)
    server.server_close()

    with api(server) as client, pytest.raises(TransientError) as raised:
        client.dag_run("d", "r")

    assert raised.value.condition == "AIRFLOW_UNREACHABLE"


def test_a_note_changes_the_note_alone(server: Server) -> None:
    server.slow = 0

    with api(server) as client:
        client.note_run("stream__games", "scheduled__2026-03-01T09:00:00+00:00", "well")

    path = "/api/v2/dags/stream__games/dagRuns/scheduled__2026-03-01T09%3A00%3A00%2B00%3A00?update_mask=note"
    assert server.patched == [(path, {"note": "well"})]


def test_an_impatient_client_tries_once(server: Server) -> None:
    address = f"http://127.0.0.1:{server.server_port}"

    with (
        AirflowApi(address, "admin", "secret", timeout_seconds=0.1, patient=False) as client,
        pytest.raises(TransientError, match="no usable answer"),
    ):
        client.note_run("d", "r", "well")

    assert server.slow == 2
