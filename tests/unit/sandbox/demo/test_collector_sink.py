"""Generated events posted over HTTP to a collector that listens, as `deltaworks generate --post` does."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Request, Response

from collector.endpoint import endpoint
from collector.handler import Collector
from collector.stream_writer import StreamWriter
from generator.games import generate_games
from generator.settings import GamesSettings
from sandbox.demo.collector_sink import BusyError, collector_sink, events_of
from tests.waiting import eventually

AT = 1_709_300_000
GAMES = GamesSettings(seed=4, target_events=1_200, events_per_file=300)


class Stream:
    """Takes whatever is put."""

    def __init__(self) -> None:
        self.bodies: list[str | None] = []

    def put_records(self, *, StreamName: str, Records: list[dict[str, Any]]) -> dict[str, Any]:
        self.bodies += [json.loads(each["Data"])["body"] for each in Records]
        return {"Records": [{} for _ in Records]}


@contextmanager
def listening(app: FastAPI) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    eventually(lambda: server.started, "the server listens")
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/v1/events"
    finally:
        server.should_exit = True
        thread.join()


def test_each_piece_is_one_record_and_events_get_the_collectors_time() -> None:
    stream, objects = Stream(), list[bytes]()
    with listening(endpoint(Collector(StreamWriter(stream, "games"), clock=lambda: AT))) as url:
        put = collector_sink(url)

        def post(key: str, body: bytes) -> None:
            objects.append(body)
            put(key, body)

        truth = generate_games(GAMES, post)

    sent = [event for body in objects for event in events_of(body)]
    assert len(sent) == len(stream.bodies) == truth.pieces
    assert Counter(map(without_time, sent)) == Counter(map(without_time, stream.bodies))
    events = [event for body in stream.bodies if isinstance(event := readable(body), dict)]
    assert len(events) > truth.accepted
    assert {event["eventTime"] for event in events} == {AT}


def test_a_collector_that_is_busy_is_asked_again() -> None:
    taken, app = list[bytes](), FastAPI()

    @app.post("/v1/events")
    async def events(request: Request) -> Response:
        taken.append(await request.body())
        return Response(status_code=503 if len(taken) < 3 else 200)

    with listening(app) as url:
        generate_games(GAMES, collector_sink(url))

    assert len(taken) > 3
    assert taken[0] == taken[1] == taken[2] != taken[3]


@pytest.mark.parametrize(("status", "error"), [(400, httpx.HTTPStatusError), (503, BusyError)])
def test_one_that_refuses_for_good_is_told(status: int, error: type[Exception]) -> None:
    asked = list[httpx.Request]()

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(status, request=request)

    client = httpx.Client(transport=httpx.MockTransport(answer))
    sink = collector_sink("http://collector", client=client, longest_wait_seconds=0.01)
    with pytest.raises(error):
        generate_games(GAMES, sink)

    assert len(asked) == (1 if status == 400 else 8)


def readable(text: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError):
        return None


def without_time(body: Any) -> str:
    """What was sent, or what is in the stream, without the time; bytes that are no text are written out there."""
    text = body.decode("utf-8", "backslashreplace") if isinstance(body, bytes) else body or ""
    value = readable(text)
    if not isinstance(value, dict):
        return text
    return json.dumps({key: each for key, each in value.items() if key != "eventTime"}, sort_keys=True)
