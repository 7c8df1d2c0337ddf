"""The Kinesis sink: aggregated events can be deaggregated, and only rejected records are put again."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.packing import SpooledEvent
from collector.sinks import SinkBusyError
from collector.sinks.kinesis import KinesisSink, aggregate, group_by_size, varint
from collector.stream_writer import StreamWriter
from deltaworks.sources.kinesis.rows import _AGGREGATE, deaggregate


def events(*payloads: bytes) -> list[SpooledEvent]:
    return [SpooledEvent(number, payload) for number, payload in enumerate(payloads, 1)]


@given(st.lists(st.binary(max_size=400), min_size=1, max_size=30), st.integers(1, 100))
def test_aggregated_records_are_deaggregated_by_readers_and_protobuf(payloads: list[bytes], key: int) -> None:
    record = aggregate(payloads, str(key))
    parts = deaggregate(record)
    assert parts is not None
    assert [part.data for part in parts] == payloads
    assert {part.partition_key for part in parts} == {str(key)}
    # The same message by protobuf itself, byte for byte.
    message = _AGGREGATE(partition_key_table=[str(key)])
    for payload in payloads:
        message.records.add(partition_key_index=0, data=payload)
    encoded = message.SerializeToString()
    assert record == b"\xf3\x89\x9a\xc2" + encoded + hashlib.md5(encoded).digest()


@given(st.lists(st.integers(0, 500), max_size=50), st.integers(100, 2_000))
def test_groups_keep_the_order_are_complete_and_respect_the_size(sizes: list[int], most: int) -> None:
    sent = events(*(b"x" * size for size in sizes))
    groups = list(group_by_size(sent, most))
    assert [event for group in groups for event in group] == sent
    for group in groups:
        payloads = [event.payload for event in group]
        assert len(group) == 1 or len(aggregate(payloads, "100")) <= most


@pytest.mark.parametrize(
    ("number", "encoded"), [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (1 << 20, "808040")]
)
def test_varints_equal_protobufs(number: int, encoded: str) -> None:
    assert varint(number).hex() == encoded


class HalfAcceptingStream:
    """A stream that takes every other record of a call, and none of the first `outages` calls."""

    def __init__(self, *, outages: int = 0, whole: bool = False) -> None:
        self.taken: list[bytes] = []
        self.calls: list[int] = []
        self._outages, self._whole = outages, whole

    def put_records(self, *, StreamName: str, Records: list[dict[str, Any]]) -> dict[str, Any]:
        self.calls.append(len(Records))
        if len(self.calls) <= self._outages:
            raise ConnectionError("away")
        results: list[dict[str, Any]] = []
        for number, record in enumerate(Records):
            refused = number % 2 == 1 and not self._whole
            if not refused:
                self.taken += [part.data for part in deaggregate(record["Data"]) or []]
            results.append({"ErrorCode": "ProvisionedThroughputExceededException"} if refused else {})
        return {"Records": results}


def sink_of(stream: HalfAcceptingStream, *, attempts: int = 20) -> KinesisSink:
    writer = StreamWriter(stream, "games", sleep=lambda _seconds: None, attempts=attempts)
    return KinesisSink(writer, aggregate_bytes=300, keys=random.Random(1))


def test_only_rejected_records_of_a_call_are_put_again() -> None:
    stream, sent = HalfAcceptingStream(), [b"%03d" % number * 30 for number in range(40)]
    assert sink_of(stream).send(events(*sent)) == []
    assert sorted(stream.taken) == sorted(sent)
    assert stream.calls == sorted(stream.calls, reverse=True)
    assert sum(stream.calls) < 2 * stream.calls[0] + 2


def test_putting_a_complete_call_again_would_duplicate_accepted_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """The protection off: whatever failed of a call, all of it goes again."""

    def put(self: StreamWriter, batch: list[Any]) -> list[Any]:
        for _ in range(4):
            self._client.put_records(StreamName="games", Records=[record.request_entry() for _, record in batch])
        return []

    monkeypatch.setattr(StreamWriter, "_put_batch", put)
    stream, sent = HalfAcceptingStream(), [b"%03d" % number * 30 for number in range(40)]
    sink_of(stream).send(events(*sent))
    assert len(stream.taken) > len(set(stream.taken))


def test_only_the_events_a_stream_rejects_are_returned() -> None:
    stream, sent = HalfAcceptingStream(), [b"%03d" % number * 30 for number in range(40)]
    with pytest.raises(SinkBusyError) as caught:
        sink_of(stream, attempts=1).send(events(*sent))
    left = [event.payload for event in caught.value.remaining]
    assert left
    assert sorted([*stream.taken, *left]) == sorted(sent)


def test_an_oversized_event_is_a_dead_letter_and_does_not_affect_others() -> None:
    stream = HalfAcceptingStream(whole=True)
    huge = b"x" * (2 << 20)
    aside = sink_of(stream).send(events(b"one", huge, b"two"))
    assert [item.event.payload for item in aside] == [huge]
    assert sorted(stream.taken) == [b"one", b"two"]


def test_a_dead_letter_is_not_lost_when_other_events_must_be_retried() -> None:
    stream, huge = HalfAcceptingStream(outages=1), b"x" * (2 << 20)
    sink = sink_of(stream, attempts=1)
    with pytest.raises(SinkBusyError) as caught:
        sink.send(events(b"one", huge, b"two"))
    assert sorted(event.payload for event in caught.value.remaining) == sorted([b"one", b"two", huge])


def test_real_records_are_read_back_by_their_stream(aws: Any) -> None:
    client = aws("kinesis")
    client.create_stream(StreamName="games", ShardCount=1)
    client.get_waiter("stream_exists").wait(StreamName="games")
    sent = [b'{"n": %d}' % number for number in range(1_000)]
    KinesisSink(StreamWriter(client, "games"), aggregate_bytes=4_096).send(events(*sent))
    shard = client.list_shards(StreamName="games")["Shards"][0]["ShardId"]
    place = client.get_shard_iterator(StreamName="games", ShardId=shard, ShardIteratorType="TRIM_HORIZON")
    records = client.get_records(ShardIterator=place["ShardIterator"])["Records"]
    assert len(records) < 20
    assert [part.data for record in records for part in deaggregate(record["Data"]) or []] == sent
