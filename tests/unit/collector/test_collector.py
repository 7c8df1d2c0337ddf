"""Events on their way from HTTP into a stream."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from collector.endpoint import endpoint
from collector.handler import Collector
from collector.records import OutgoingRecord, outgoing
from collector.stream_writer import BYTES_PER_CALL, RECORDS_PER_CALL, Refusal, StreamWriter

AT = 1_700_000_000


class Stream:
    """The service as the writer sees it: takes, refuses single records, or fails a call as a whole."""

    def __init__(self, *refusing: float | None, seed: int = 1) -> None:
        self.taken: list[dict[str, Any]] = []
        self.calls: list[int] = []
        self._refusing = list(refusing)
        self._random = random.Random(seed)

    def put_records(self, *, StreamName: str, Records: list[dict[str, Any]]) -> dict[str, Any]:
        assert StreamName == "events"
        assert len(Records) <= RECORDS_PER_CALL
        assert sum(len(each["Data"]) + len(each["PartitionKey"]) for each in Records) <= BYTES_PER_CALL
        self.calls.append(len(Records))
        share = self._refusing.pop(0) if self._refusing else 0.0
        if share is None:
            raise ConnectionError("cut off")
        refused = [self._random.random() < share for _ in Records]
        self.taken += [each for each, no in zip(Records, refused, strict=True) if not no]
        return {"Records": [{"ErrorCode": "ProvisionedThroughputExceededException"} if no else {} for no in refused]}


def request(event: Any) -> dict[str, Any]:
    return {"resource": "/v1/events", "body": event if isinstance(event, str) else json.dumps(event)}


def test_the_time_of_an_event_is_the_servers() -> None:
    record = outgoing(request({"eventName": "a", "eventTime": 1}), at=AT, keys=random.Random(1))

    assert json.loads(json.loads(record.data)["body"]) == {"eventName": "a", "eventTime": AT}


@pytest.mark.parametrize("body", ["no json", "17", '["a"]', "", None])
def test_what_is_no_event_goes_on_as_it_is(body: str | None) -> None:
    sent = {"resource": "/v1/events", "body": body}

    assert json.loads(outgoing(sent, at=AT, keys=random.Random(1)).data) == sent


def test_partition_keys_are_1_to_100_and_all_of_them_are_used() -> None:
    keys = random.Random(3)
    found = Counter(outgoing(request({}), at=AT, keys=keys).partition_key for _ in range(5_000))

    assert set(found) == {str(number) for number in range(1, 101)}


@given(
    st.lists(st.integers(1, 400_000), min_size=1, max_size=60),
    st.lists(st.floats(0, 0.9), max_size=5),
    st.integers(0, 99),
)
def test_each_record_is_taken_once_whatever_is_refused(sizes: list[int], refusing: list[float], seed: int) -> None:
    stream = Stream(*refusing, seed=seed)
    records = [OutgoingRecord(str(at).encode().ljust(size, b"."), "1") for at, size in enumerate(sizes)]

    assert StreamWriter(stream, "events", sleep=lambda seconds: None, seed=1).put(records) == []

    assert Counter(each["Data"] for each in stream.taken) == Counter(record.data for record in records)


def test_only_what_was_refused_is_sent_again_after_a_growing_wait() -> None:
    stream, waits = Stream(0.5, 0.5, 0.5), list[float]()
    StreamWriter(stream, "events", sleep=waits.append, seed=1).put([OutgoingRecord(b"x", "1")] * 100)

    assert stream.calls == sorted(stream.calls, reverse=True)
    assert len(stream.calls) == len(set(stream.calls)) == 4
    assert sum(stream.calls[1:]) < 100
    assert waits == sorted(waits)


def test_a_call_that_failed_as_a_whole_is_made_again() -> None:
    stream = Stream(None, None)
    StreamWriter(stream, "events", sleep=lambda seconds: None).put([OutgoingRecord(b"x", "1")])

    assert len(stream.taken) == 1


def test_what_is_never_taken_is_named_and_may_be_sent_again() -> None:
    stream = Stream(*[1.0] * 8)
    refusals = StreamWriter(stream, "events", sleep=lambda seconds: None).put([OutgoingRecord(b"x", "1")] * 3)

    assert refusals == [Refusal(index, "ProvisionedThroughputExceededException") for index in range(3)]


class Particular(Stream):
    """A stream that refuses any call with a poisoned record in it, as Kinesis does for records of a wrong size."""

    def put_records(self, *, StreamName: str, Records: list[dict[str, Any]]) -> dict[str, Any]:
        poisoned = [at for at, each in enumerate(Records, 1) if each["Data"].startswith(b"poison")]
        if poisoned:
            error = {"Code": "ValidationException", "Message": f"Value at 'records.{poisoned[0]}.member.data' failed"}
            raise ClientError({"Error": error}, "PutRecords")
        return super().put_records(StreamName=StreamName, Records=Records)


@given(st.lists(st.booleans(), min_size=1, max_size=700))
def test_records_that_make_a_call_impossible_cost_their_neighbours_nothing(poisoned: list[bool]) -> None:
    stream, waits = Particular(), list[float]()
    records = [OutgoingRecord(b"poison" if bad else b"good %d" % at, "1") for at, bad in enumerate(poisoned)]

    refusals = StreamWriter(stream, "events", sleep=waits.append).put(records)

    assert [(refusal.index, refusal.status) for refusal in refusals] == [
        (at, 400) for at, bad in enumerate(poisoned) if bad
    ]
    assert Counter(each["Data"] for each in stream.taken) == Counter(
        record.data for record, bad in zip(records, poisoned, strict=True) if not bad
    )
    assert waits == [], "there is nothing to wait for"


@pytest.mark.parametrize("code", ["ResourceNotFoundException", "AccessDeniedException", "ValidationException"])
def test_a_call_refused_for_its_stream_or_its_rights_blames_no_record(code: str) -> None:
    class Closed(Stream):
        def put_records(self, **call: Any) -> dict[str, Any]:
            raise ClientError({"Error": {"Code": code, "Message": "Value at 'streamName' failed"}}, "PutRecords")

    [refusal] = StreamWriter(Closed(), "events", sleep=lambda seconds: None).put([OutgoingRecord(b"x", "1")])

    assert refusal.status is None


async def _posted(stream: Stream, body: bytes, kind: str) -> httpx.Response:
    writer = StreamWriter(stream, "events", sleep=lambda seconds: None)
    transport = httpx.ASGITransport(app=endpoint(Collector(writer, clock=lambda: AT)))
    async with httpx.AsyncClient(transport=transport, base_url="http://collector") as client:
        return await client.post("/v1/events", content=body, headers={"content-type": kind})


@pytest.mark.parametrize(
    ("body", "kind", "events"),
    [
        (b'{"eventName": "a"}', "application/json", 1),
        (b'{"eventName": "a"}\n\n{"eventName": "b"}\n', "application/x-ndjson", 2),
        (b"\xff", "application/json", 1),
    ],
)
def test_what_is_posted_is_in_the_stream_before_it_is_accepted(body: bytes, kind: str, events: int) -> None:
    import asyncio

    stream = Stream()
    answer = asyncio.run(_posted(stream, body, kind))

    assert (answer.status_code, answer.json()) == (200, {"accepted": events})
    assert len(stream.taken) == events


def test_a_stream_that_refuses_has_the_sender_try_again() -> None:
    import asyncio

    answer = asyncio.run(_posted(Stream(*[1.0] * 8), b"{}", "application/json"))

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json() == {"accepted": 0, "retry": [1]}
