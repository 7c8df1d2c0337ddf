"""The application without connections: durable events, a stopping process, internal errors."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from collector.admission import ByteReservation, InFlightBytes
from collector.app import CollectorApp, ServerState
from collector.exposition import exposition
from collector.request_handler import RequestHandler, RequestHead
from collector.responses import Response
from collector.submissions import Entry, OnWritten, WriteResult
from tests.unit.collector.request_handler_harness import KEY, ORIGIN, declared


class FakeWriter:
    """What stands behind the application: answers at once, or when the test says so."""

    def __init__(self, *, problem: str | None = None, at_once: bool = True) -> None:
        self.entries: list[Entry] = []
        self.waiting: list[OnWritten] = []
        self.full = 0.0
        self._problem = problem
        self._at_once = at_once

    def submit(self, entries: list[Entry], on_written: OnWritten) -> None:
        self.entries += entries
        if self._at_once:
            on_written(WriteResult(None, self._problem) if self._problem else WriteResult(1))
        else:
            self.waiting.append(on_written)

    def rejection_reason(self) -> str | None:
        return None

    def fill_ratio(self) -> float:
        return self.full


class Client:
    """Calls an application as the front does."""

    def __init__(
        self, writer: FakeWriter | None = None, *, in_flight_bytes: int = 1 << 20, listen: dict[str, Any] | None = None
    ) -> None:
        self.writer = writer or FakeWriter()
        self.in_flight = InFlightBytes(in_flight_bytes)
        door = RequestHandler(declared(listen=listen or {}), collector_id="c0", source_numbers={"games": 0})
        self.app = CollectorApp(door, self.writer)

    def send(
        self, body: bytes = b"", *, method: str = "POST", path: str = "/v1/track", **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        named[b"authorization"] = b"Basic " + base64.b64encode(f"{KEY}:".encode())
        head, replies = RequestHead(method, path, b"", named), list[Response]()
        begun = self.app.begin(head)
        if isinstance(begun, Response):
            replies.append(begun)
        else:
            self.app.complete(begun, body, ByteReservation(self.in_flight), replies.append)
        (response,) = replies
        return (
            response.status,
            {name.decode(): value.decode() for name, value in response.headers},
            json.loads(response.body) if response.body else None,
        )


def test_events_that_become_more_than_the_bytes_in_flight_are_rejected() -> None:
    body = json.dumps({"batch": [{}] * 100}).encode()

    assert Client(in_flight_bytes=10_000).send(body, path="/v1/batch")[0] == 503
    assert Client(in_flight_bytes=100_000).send(body, path="/v1/batch")[0] == 200


@pytest.mark.parametrize("problem", ["disk", "spool_full"])
def test_events_that_the_spool_rejects_are_not_acknowledged(problem: str) -> None:
    status, headers, content = Client(FakeWriter(problem=problem)).send(b"{}")

    assert (status, content["code"]) == (503, problem)
    assert 1 <= int(headers["retry-after"]) <= 30


def test_a_draining_process_accepts_requests_and_closes_connections_and_a_closed_one_rejects() -> None:
    client = Client()
    answers = []
    for state in ServerState:
        client.app.state = state
        status, headers, _ = client.send(b"{}")
        ready, _, _ = client.send(method="GET", path="/ready")
        answers.append((state.name, status, headers.get("connection"), ready))

    assert answers == [("RUNNING", 200, None, 200), ("DRAINING", 200, "close", 503), ("CLOSED", 503, "close", 503)]


def test_readiness_ends_at_nine_tenths_and_health_does_not() -> None:
    client = Client()
    statuses = []
    for full in (0.0, 0.89, 0.9):
        client.writer.full = full
        statuses.append(client.send(method="GET", path="/ready")[0])

    assert statuses == [200, 200, 503]
    assert client.send(method="GET", path="/health")[0] == 200


def test_a_browsers_preflight_is_answered() -> None:
    client = Client()

    status, headers, _ = client.send(method="OPTIONS", origin=ORIGIN)
    refused, _, _ = client.send(method="OPTIONS", origin="https://evil.example.org")

    assert (status, refused) == (200, 403)
    assert headers["access-control-allow-origin"] == ORIGIN
    assert headers["access-control-max-age"] == "7200"
    assert headers["access-control-allow-headers"] == "authorization, content-type, content-encoding, x-retry-count"


def test_settings_need_the_write_key() -> None:
    client = Client(listen={"public_host": "events.example.org"})

    status, _, content = client.send(method="GET", path=f"/v1/projects/{KEY}/settings", host="evil.example.org")

    assert (status, content["integrations"]["Segment.io"]["apiHost"]) == (200, "events.example.org/v1")
    assert client.send(method="GET", path="/v1/projects/other/settings")[0] == 401
    assert Client().send(method="GET", path=f"/v1/projects/{KEY}/settings", host="evil.example.org")[0] == 404


def test_an_internal_error_asks_the_client_to_retry(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FakeWriter):
        def submit(self, entries: list[Entry], on_written: OnWritten) -> None:
            raise RuntimeError("broken")

    status, headers, content = Client(Broken()).send(b"{}")

    assert (status, content["code"], "retry-after" in headers) == (500, "internal", True)


def test_metrics_have_no_ids_in_their_labels() -> None:
    client = Client()
    client.send(b'{"batch":[{"messageId":"m-1"},3]}', path="/v1/batch")
    client.send(b"", path="/v1/nothing")

    text = exposition(client.app.metrics, {"spool_bytes": 7.0}).decode()

    assert 'deltaworks_collector_requests_total{code="",status="200"} 1' in text
    assert 'deltaworks_collector_requests_total{code="path",status="404"} 1' in text
    assert 'deltaworks_collector_events_total{source="games",verdict="kept"} 1' in text
    assert "deltaworks_collector_spool_bytes 7.0" in text
    assert "m-1" not in text
