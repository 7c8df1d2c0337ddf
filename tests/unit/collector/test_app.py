"""The application without a server: bodies in chunks, too many requests, a stopping process, internal errors."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from collector.app import CollectorApp, ServerState
from collector.exposition import exposition
from collector.request_handler import RequestHandler
from collector.submissions import Entry, OnWritten, WriteResult
from tests.unit.collector.request_handler_harness import KEY, ORIGIN, declared

Message = dict[str, Any]


class FakeWriter:
    """What stands behind the door: answers at once, or when the test says so."""

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
    """Calls an application as a server does."""

    def __init__(self, writer: FakeWriter | None = None, **limits: Any) -> None:
        self.writer = writer or FakeWriter()
        spec = declared(limits=limits) if limits else declared()
        door = RequestHandler(spec, collector_id="c0", source_numbers={"games": 0})
        self.app = CollectorApp(door, self.writer)

    async def send(
        self, pieces: Sequence[bytes], *, method: str = "POST", path: str = "/v1/track", **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
        if messages:
            messages[-1]["more_body"] = False
        return await self.call(iter(messages).__next__, method=method, path=path, **headers)

    async def call(
        self, next_message: Callable[[], Message], *, method: str = "POST", path: str = "/v1/track", **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        sent: list[Message] = []

        async def receive() -> Mapping[str, Any]:
            try:
                return next_message()
            except StopIteration:
                await asyncio.sleep(3600)
                raise

        async def send(message: Message) -> None:
            sent.append(message)

        named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        named.append((b"authorization", b"Basic " + base64.b64encode(f"{KEY}:".encode())))
        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": named, "client": None}
        await self.app(scope, receive, send)
        if not sent:
            return 0, {}, None
        start, body = sent
        return (
            start["status"],
            {name.decode(): value.decode() for name, value in start["headers"]},
            json.loads(body["body"]) if body["body"] else None,
        )


def test_a_body_arrives_in_chunks() -> None:
    client = Client()

    status, _, content = asyncio.run(client.send([b'{"a"', b":", b"1}"]))

    assert (status, content["accepted"], len(client.writer.entries)) == (200, 1, 1)


def test_a_body_without_a_length_is_rejected_once_it_is_too_large() -> None:
    client = Client()

    status, headers, content = asyncio.run(client.send([b"x" * (1 << 20)] * 5, origin=ORIGIN))

    assert (status, content["code"], headers["connection"]) == (413, "too_large", "close")
    assert headers["access-control-allow-origin"] == ORIGIN
    assert client.writer.entries == []


def test_only_a_stalled_body_is_rejected_after_its_time_limit() -> None:
    async def scenario() -> tuple[Any, Any]:
        client = Client(body_seconds=5)
        slow = asyncio.create_task(
            client.call(iter([{"type": "http.request", "body": b"{", "more_body": True}]).__next__)
        )
        await asyncio.sleep(0)
        client.app.reject_slow_bodies(100.0)
        late = asyncio.create_task(client.call(iter(()).__next__))
        await asyncio.sleep(0)
        client.app.reject_slow_bodies(106.0)
        answer = await slow
        still_waits = not late.done()
        late.cancel()
        return answer, still_waits

    (status, headers, content), still_waits = asyncio.run(scenario())

    assert (status, content["code"], headers["connection"]) == (408, "slow_body", "close")
    assert still_waits


def test_a_disconnected_client_gets_no_response() -> None:
    client = Client()

    assert asyncio.run(client.call(iter([{"type": "http.disconnect"}]).__next__))[0] == 0
    assert client.writer.entries == []


def test_bytes_in_flight_are_bounded_and_released() -> None:
    async def scenario() -> list[int]:
        writer = FakeWriter(at_once=False)
        client = Client(writer, in_flight_bytes=1000)
        first = asyncio.create_task(client.send([b"{}"], content_length="800"))
        await asyncio.sleep(0.01)
        second = await client.send([b"{}"], content_length="800")
        writer.waiting.pop()(WriteResult(1))
        done = await first
        third = asyncio.create_task(client.send([b"{}"], content_length="800"))
        await asyncio.sleep(0.01)
        writer.waiting.pop()(WriteResult(2))
        return [done[0], second[0], (await third)[0]]

    assert asyncio.run(scenario()) == [200, 503, 200]


def test_bodies_without_a_length_are_counted_as_they_arrive() -> None:
    client = Client(in_flight_bytes=1000)

    assert asyncio.run(client.send([b'{"a":"', b"x" * 500, b"x" * 600, b'"}']))[0] == 503
    assert asyncio.run(client.send([b'{"a":"', b"x" * 500, b"x" * 300, b'"}']))[0] == 200


def test_a_body_declared_too_large_is_read_before_it_is_rejected() -> None:
    client, read = Client(), []

    def next_message() -> Message:
        read.append(1)
        return {"type": "http.request", "body": b"x" * (1 << 20), "more_body": len(read) < 6}

    status, headers, _ = asyncio.run(client.call(next_message, content_length=str(6 << 20)))

    assert (status, headers["connection"], len(read)) == (413, "close", 6)
    status, _, _ = asyncio.run(
        client.call(
            lambda: {"type": "http.request", "body": b"x" * (1 << 20), "more_body": True}, content_length="9" * 12
        )
    )
    assert status == 413, "and not to its end, where that does not come"


@pytest.mark.parametrize("problem", ["disk", "spool_full"])
def test_events_that_the_spool_rejects_are_not_acknowledged(problem: str) -> None:
    status, headers, content = asyncio.run(Client(FakeWriter(problem=problem)).send([b"{}"]))

    assert (status, content["code"]) == (503, problem)
    assert 1 <= int(headers["retry-after"]) <= 30


def test_a_draining_process_accepts_requests_and_closes_connections_and_a_closed_one_rejects() -> None:
    client = Client()
    answers = []
    for state in ServerState:
        client.app.state = state
        status, headers, _ = asyncio.run(client.send([b"{}"]))
        ready, _, _ = asyncio.run(client.send([], method="GET", path="/ready"))
        answers.append((state.name, status, headers.get("connection"), ready))

    assert answers == [("RUNNING", 200, None, 200), ("DRAINING", 200, "close", 503), ("CLOSED", 503, "close", 503)]


def test_readiness_ends_at_nine_tenths_and_health_does_not() -> None:
    client = Client()
    statuses = []
    for full in (0.0, 0.89, 0.9):
        client.writer.full = full
        statuses.append(asyncio.run(client.send([], method="GET", path="/ready"))[0])

    assert statuses == [200, 200, 503]
    assert asyncio.run(client.send([], method="GET", path="/health"))[0] == 200


def test_a_browsers_preflight_is_answered() -> None:
    client = Client()

    status, headers, _ = asyncio.run(client.send([], method="OPTIONS", origin=ORIGIN))
    refused, _, _ = asyncio.run(client.send([], method="OPTIONS", origin="https://evil.example.org"))

    assert (status, refused) == (200, 403)
    assert headers["access-control-allow-origin"] == ORIGIN
    assert headers["access-control-max-age"] == "7200"
    assert headers["access-control-allow-headers"] == "authorization, content-type, content-encoding, x-retry-count"


def test_settings_need_the_write_key() -> None:
    client = Client()

    status, _, content = asyncio.run(
        client.send([], method="GET", path=f"/v1/projects/{KEY}/settings", host="events.example.org")
    )

    assert (status, content["integrations"]["Segment.io"]["apiHost"]) == (200, "events.example.org/v1")
    assert asyncio.run(client.send([], method="GET", path="/v1/projects/other/settings"))[0] == 401


def test_an_internal_error_asks_the_client_to_retry(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FakeWriter):
        def submit(self, entries: list[Entry], on_written: OnWritten) -> None:
            raise RuntimeError("broken")

    status, headers, content = asyncio.run(Client(Broken()).send([b"{}"]))

    assert (status, content["code"], "retry-after" in headers) == (500, "internal", True)


def test_metrics_have_no_ids_in_their_labels() -> None:
    client = Client()
    asyncio.run(client.send([b'{"batch":[{"messageId":"m-1"},3]}'], path="/v1/batch"))
    asyncio.run(client.send([b""], path="/v1/nothing"))

    text = exposition(client.app.metrics, {"spool_bytes": 7.0}).decode()

    assert 'deltaworks_collector_requests_total{code="",status="200"} 1' in text
    assert 'deltaworks_collector_requests_total{code="path",status="404"} 1' in text
    assert 'deltaworks_collector_events_total{source="games",verdict="kept"} 1' in text
    assert "deltaworks_collector_spool_bytes 7.0" in text
    assert "m-1" not in text
