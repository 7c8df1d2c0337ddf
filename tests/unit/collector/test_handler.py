"""The handler as API Gateway calls it, over Kinesis' own protocol: every event is judged by itself."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from collector import handler
from collector.handler import Collector
from collector.stream_writer import RECORD_BYTES, StreamWriter
from tests.moto_server import running_moto

AT = 1_700_000_000
LINES = {"content-type": "application/x-ndjson; charset=utf-8"}
DEEP = '{"a":' * 300 + "1" + "}" * 300
HUGE = '{"x":"' + "a" * RECORD_BYTES + '"}'


@pytest.fixture(scope="module")
def kinesis() -> Iterator[Any]:
    """A client of a server that holds records to the limits of the service."""
    with running_moto() as address:
        yield boto3.session.Session().client(
            "kinesis",
            endpoint_url=address,
            region_name="us-east-1",
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )


class Events:
    """A stream, the collector in front of it, and the events that are in it."""

    def __init__(self, kinesis: Any) -> None:
        self.name = uuid.uuid4().hex
        self._kinesis = kinesis
        kinesis.create_stream(StreamName=self.name, ShardCount=1)
        kinesis.get_waiter("stream_exists").wait(StreamName=self.name)
        self.writer = StreamWriter(kinesis, self.name, sleep=lambda seconds: None)
        self.collector = Collector(self.writer, clock=lambda: AT)

    def take(self, body: str, **more: Any) -> tuple[int, dict[str, Any]]:
        answer = self.collector.take({"resource": "/v1/events", "body": body, **more})
        return answer["statusCode"], json.loads(answer["body"])

    def records(self) -> list[dict[str, Any]]:
        [shard] = self._kinesis.list_shards(StreamName=self.name)["Shards"]
        place = {"StreamName": self.name, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
        iterator = self._kinesis.get_shard_iterator(**place)["ShardIterator"]
        found = self._kinesis.get_records(ShardIterator=iterator, Limit=1_000)["Records"]
        return [json.loads(record["Data"]) for record in found]

    def bodies(self) -> list[str]:
        return [record["body"] for record in self.records()]


@pytest.fixture
def events(kinesis: Any) -> Events:
    return Events(kinesis)


def with_time(*bodies: str) -> list[str]:
    return [f'{{"eventTime":{AT},{body[1:]}' for body in bodies]


def test_an_event_that_is_nested_deeply_turns_no_neighbour_away(events: Events) -> None:
    answer = events.take("\n".join(['{"ok":1}', DEEP, '{"ok":2}']), headers=LINES)

    assert answer == (200, {"accepted": 3})
    assert events.bodies() == with_time('{"ok":1}', DEEP, '{"ok":2}')


def test_an_event_that_is_too_large_is_refused_for_good_and_its_neighbours_are_taken(events: Events) -> None:
    status, content = events.take("\n".join(['{"ok":1}', "", HUGE, '{"ok":2}']), headers=LINES)

    assert (status, content["accepted"]) == (207, 2)
    [refused] = content["refused"]
    assert (refused["line"], refused["status"], "retry" in content) == (3, 413, False)
    assert events.bodies() == with_time('{"ok":1}', '{"ok":2}')


def test_a_request_of_which_nothing_can_be_taken_has_the_status_of_its_events(events: Events) -> None:
    assert events.take(HUGE)[0] == 413
    assert events.take(f"{HUGE}\n{HUGE}", headers=LINES)[0] == 413
    assert events.bodies() == []


def test_a_record_just_within_the_limit_of_the_stream_is_taken(events: Events) -> None:
    bodies = ['{"x":"' + "a" * (RECORD_BYTES - 150 + size) + '"}' for size in range(0, 100, 10)]
    answers = [events.take(body)[0] for body in bodies]

    assert set(answers) == {200, 413}
    assert answers == sorted(answers), "from one size on none is taken"


def test_what_the_stream_itself_refuses_is_no_reason_to_try_again(events: Events) -> None:
    events.writer._record_bytes = 2 * RECORD_BYTES

    status, content = events.take("\n".join(['{"ok":1}', HUGE, '{"ok":2}']), headers=LINES)

    assert (status, content["accepted"]) == (207, 2)
    [refused] = content["refused"]
    assert (refused["line"], refused["status"]) == (2, 400)
    assert "1048576" in refused["reason"]


def test_a_stream_that_is_not_there_is_worth_another_try(events: Events, kinesis: Any) -> None:
    writer = StreamWriter(kinesis, "none", sleep=lambda seconds: None)

    answer = Collector(writer).take({"body": f"{{}}\n{HUGE}\n{{}}", "headers": LINES})

    assert (answer["statusCode"], answer["headers"]) == (503, {"Retry-After": "5"})
    content = json.loads(answer["body"])
    assert (content["accepted"], content["retry"], [each["line"] for each in content["refused"]]) == (0, [1, 3], [2])


@pytest.mark.parametrize("header", ["Content-Type", "content-type"])
def test_lines_and_bodies_in_base64_get_the_time_in_a_lambda_too(
    events: Events, monkeypatch: pytest.MonkeyPatch, header: str
) -> None:
    monkeypatch.setattr(handler, "_collector", lambda: events.collector)
    sent = ['{"id":100000000000000000001,"x":1.10}', '{"u":"\u2028ä"}']
    lines = {header: "application/x-ndjson"}

    def invoke(text: str, **more: Any) -> int:
        body = base64.b64encode(text.encode()).decode()
        return int(handler.handle({"body": body, "isBase64Encoded": True, **more}, None)["statusCode"])

    assert [invoke(sent[0]), invoke("\ufeff" + "\r\n".join(sent), headers=lines), invoke("no json")] == [200] * 3

    assert events.bodies() == [*with_time(sent[0], *sent), "no json"]
    assert [record["isBase64Encoded"] for record in events.records()] == [False] * 4


def test_a_body_that_is_no_base64_goes_on_as_it_is(events: Events) -> None:
    assert events.take("%%%", isBase64Encoded=True) == (200, {"accepted": 1})
    assert [(record["body"], record["isBase64Encoded"]) for record in events.records()] == [("%%%", True)]
