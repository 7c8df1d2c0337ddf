"""Sinks of generated events: posted to a collector, and put into a stream that is split and merged meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from generator.games import generate_games
from generator.settings import GamesSettings
from sandbox.demo.collector_delivery import ReshardingSink
from sandbox.demo.collector_sink import BusyError, CollectorSink, collector_sink, events_of
from sandbox.servers.landing import landing_client
from tests.kinesis_server import running_kinesis
from tests.unit.collector.http_harness import KEY, MemoryWriter, app_of, collector_spec, listening

GAMES = GamesSettings(seed=4, target_events=1_200, events_per_file=300)


def test_each_piece_is_one_event_and_those_that_have_a_time_keep_it() -> None:
    kept, objects = MemoryWriter(), list[bytes]()
    spec = collector_spec(wrap="api_gateway", stamp_time=False)
    with listening(app_of(spec, kept)) as server:
        sink = CollectorSink(f"{server.address}/v1/events", key=KEY)

        def post(key: str, body: bytes) -> None:
            objects.append(body)
            sink(key, body)

        truth = generate_games(GAMES, post)

    bodies = [event["body"] for event in kept.events]
    sent = [event for body in objects for event in events_of(body)]
    assert len(sent) == len(bodies) == truth.pieces == sink.acknowledged
    readable_ones = [json.loads(event) for event in sent if isinstance(readable(event), dict)]
    taken = [event for body in bodies if isinstance(event := readable(body), dict)]
    for event in taken:
        assert event.pop("_collector")["source"] == "games"
    assert taken == readable_ones
    assert len(taken) > truth.accepted_rows
    assert len({event.get("eventTime") for event in taken}) > 1


def test_a_collector_that_is_busy_is_asked_again() -> None:
    taken = list[bytes]()

    def respond(request: httpx2.Request) -> httpx2.Response:
        taken.append(request.read())
        status = 503 if len(taken) < 3 else 200
        return httpx2.Response(status, json={"accepted": 1, "kept": 0}, request=request)

    client = httpx2.Client(transport=httpx2.MockTransport(respond))
    generate_games(GAMES, collector_sink("http://collector/v1/events", client=client, longest_wait_seconds=0.01))

    assert len(taken) > 3
    assert taken[0] == taken[1] == taken[2] != taken[3]


@pytest.mark.parametrize(("status", "error"), [(400, httpx2.HTTPStatusError), (503, BusyError)])
def test_one_that_refuses_for_good_is_told(status: int, error: type[Exception]) -> None:
    asked = list[httpx2.Request]()

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request)
        return httpx2.Response(status, request=request)

    client = httpx2.Client(transport=httpx2.MockTransport(answer))
    sink = collector_sink("http://collector", client=client, longest_wait_seconds=0.01)
    with pytest.raises(error):
        generate_games(GAMES, sink)

    assert len(asked) == (1 if status == 400 else 8)


def readable(text: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError):
        return None


STREAM = "reshard"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with running_kinesis() as address:
        yield address


def test_a_stream_is_split_after_a_third_and_merged_after_two_thirds(endpoint: str) -> None:
    kinesis = landing_client("kinesis", endpoint=endpoint, access_key="testing", secret_key="testing")
    kinesis.create_stream(StreamName=STREAM, ShardCount=1)
    open_shards: list[int] = []
    used: set[str] = set()

    def deliver(key: str, body: bytes) -> None:
        open_shards.append(len(sink.open_shards()))
        used.add(kinesis.put_record(StreamName=STREAM, Data=body, PartitionKey=key)["ShardId"])

    sink = ReshardingSink(deliver, kinesis, STREAM, objects=30)
    for number in range(36):
        sink(f"k{number}", b"{}")

    assert open_shards == [1] * 10 + [2] * 10 + [1] * 16
    assert len(used) == 4
    assert len(kinesis.list_shards(StreamName=STREAM)["Shards"]) == 4
