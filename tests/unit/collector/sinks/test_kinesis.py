"""Sinks of a collector: acknowledged events are delivered, and only rejected records are put again."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from collector.drain import LandingDestination, RecordDestination
from collector.packing import SpooledEvent
from collector.records import OutgoingRecord
from collector.sinks import SinkBusyError
from collector.sinks.factory import open_destinations
from collector.sinks.kafka import KafkaSink
from collector.sinks.kinesis import KinesisSink, aggregate, group_by_size, varint
from collector.stream_writer import MAX_BYTES_PER_CALL, MAX_RECORDS_PER_CALL, RejectedRecord, StreamWriter
from deltaworks.errors import ConfigError
from deltaworks.sources.kinesis.rows import _AGGREGATE, deaggregate
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.collector import CollectorSpec
from deltaworks.specs.project import load_catalog
from deltaworks.testing import present
from tests.unit.specs.conftest import PIPELINE, write_project


def events(*payloads: bytes) -> list[SpooledEvent]:
    return [SpooledEvent(number, payload) for number, payload in enumerate(payloads, 1)]


@given(st.lists(st.binary(max_size=400), min_size=1, max_size=30), st.integers(1, 100))
def test_aggregated_records_are_deaggregated_by_readers_and_protobuf(payloads: list[bytes], key: int) -> None:
    record = aggregate(payloads, str(key))
    parts = present(deaggregate(record))
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


SENT = [SpooledEvent(number, b"%d" % number) for number in range(1, 7)]


class Brokers:
    """A producer whose brokers take what `word` has no error for."""

    made = 0

    def __init__(self, word: Callable[[bytes], int | None], *, silent: bool = False) -> None:
        self.word, self.silent = word, silent
        self.taken: list[bytes] = []
        self.options: dict[str, Any] = {}
        self._waiting: list[tuple[bytes, Callable[[Any, Any], None]]] = []

    def __call__(self, options: dict[str, Any]) -> Brokers:
        self.made += 1
        self.options = options
        return self

    def produce(self, topic: str, value: bytes, *, on_delivery: Callable[[Any, Any], None]) -> None:
        if len(value) > 1_000:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        self._waiting.append((value, on_delivery))

    def poll(self, _seconds: float) -> None: ...

    def flush(self, _seconds: float) -> int:
        for value, on_delivery in [] if self.silent else self._waiting:
            code = self.word(value)
            if code is None:
                self.taken.append(value)
            on_delivery(None if code is None else KafkaError(code), None)
        self._waiting = []
        return 0

    def purge(self) -> None:
        self._waiting = []


def test_acknowledged_events_are_delivered() -> None:
    brokers = Brokers(lambda _value: None)
    assert KafkaSink({}, "games", new_producer=brokers).send(SENT) == []
    assert brokers.taken == [event.payload for event in SENT]
    assert (brokers.options["enable.idempotence"], brokers.options["acks"]) == (True, "all")


def test_only_rejected_events_remain_and_the_next_attempt_has_a_new_producer() -> None:
    brokers = Brokers(lambda value: KafkaError._MSG_TIMED_OUT if value in (b"2", b"5") else None)
    sink = KafkaSink({}, "games", new_producer=brokers)
    with pytest.raises(SinkBusyError) as caught:
        sink.send(SENT)
    assert [event.payload for event in caught.value.remaining] == [b"2", b"5"]
    brokers.word = lambda _value: None
    sink.send(caught.value.remaining)
    assert sorted(brokers.taken) == [event.payload for event in SENT]
    assert brokers.made == 2


def test_without_an_acknowledgement_no_event_is_delivered() -> None:
    with pytest.raises(SinkBusyError) as caught:
        KafkaSink({}, "games", new_producer=Brokers(lambda _value: None, silent=True)).send(SENT)
    assert caught.value.remaining == SENT


def test_a_permanently_rejected_event_is_a_dead_letter() -> None:
    brokers = Brokers(lambda value: KafkaError.MSG_SIZE_TOO_LARGE if value == b"3" else None)
    huge = SpooledEvent(9, b"x" * 2_000)
    aside = KafkaSink({}, "games", new_producer=brokers).send([*SENT, huge])
    assert sorted(item.event.seq for item in aside) == [3, 9]
    assert len(brokers.taken) == 5


def test_a_dead_letter_of_a_topic_is_not_lost_when_other_events_must_be_retried() -> None:
    brokers = Brokers(lambda value: KafkaError._MSG_TIMED_OUT if value == b"2" else None)
    huge = SpooledEvent(9, b"x" * 2_000)
    with pytest.raises(SinkBusyError) as caught:
        KafkaSink({}, "games", new_producer=brokers).send([*SENT, huge])
    assert sorted(event.seq for event in caught.value.remaining) == [2, 9]


DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


def spec(sink: dict[str, Any]) -> CollectorSpec:
    source = {"pipeline": "shop", "keys": [{"sha256": DIGEST}], "sink": sink}
    return CollectorSpec.model_validate({"collector": "edge", "sources": {"shop": source}})


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return load_catalog(root=write_project(tmp_path))


def test_the_bucket_is_the_pipelines_and_objects_close_within_the_given_time(catalog: Catalog) -> None:
    way = open_destinations(spec({"kind": "landing", "prefix": "shop/"}), catalog, close_seconds=2)["shop"]
    assert isinstance(way, LandingDestination)
    assert (way.prefix, way.thresholds.bytes, way.thresholds.seconds) == ("shop/", 8 << 20, 2)
    assert way.sink._bucket == "landing"  # type: ignore[attr-defined]


def test_a_sink_without_a_stream_for_a_pipeline_without_one_is_rejected(catalog: Catalog) -> None:
    with pytest.raises(ConfigError) as caught:
        open_destinations(spec({"kind": "kinesis"}), catalog)
    assert caught.value.condition == "COLLECTOR_SINK_UNDEFINED"
    assert "sources.shop.sink.stream" in caught.value.hint


def test_the_stream_is_the_pipelines(tmp_path: Path) -> None:
    objects = PIPELINE[PIPELINE.index("source:") : PIPELINE.index("event:")]
    streams = PIPELINE.replace(objects, "source: {kind: kinesis, stream: orders}\n")
    catalog = load_catalog(root=write_project(tmp_path, pipeline=streams))
    way = open_destinations(spec({"kind": "kinesis"}), catalog)["shop"]
    assert isinstance(way, RecordDestination)
    sink = way.open_sink()
    assert isinstance(sink, KinesisSink)
    assert sink._writer._stream == "orders"


class Stream:
    """The service as the writer sees it: takes, refuses single records, or fails a call as a whole."""

    def __init__(self, *refusing: float | None, seed: int = 1) -> None:
        self.taken: list[dict[str, Any]] = []
        self.calls: list[int] = []
        self._refusing = list(refusing)
        self._random = random.Random(seed)

    def put_records(self, *, StreamName: str, Records: list[dict[str, Any]]) -> dict[str, Any]:
        assert StreamName == "events"
        assert len(Records) <= MAX_RECORDS_PER_CALL
        assert sum(len(each["Data"]) + len(each["PartitionKey"]) for each in Records) <= MAX_BYTES_PER_CALL
        self.calls.append(len(Records))
        share = self._refusing.pop(0) if self._refusing else 0.0
        if share is None:
            raise ConnectionError("cut off")
        refused = [self._random.random() < share for _ in Records]
        self.taken += [each for each, no in zip(Records, refused, strict=True) if not no]
        return {"Records": [{"ErrorCode": "ProvisionedThroughputExceededException"} if no else {} for no in refused]}


@given(
    st.lists(st.integers(1, 400_000), min_size=1, max_size=60),
    st.lists(st.floats(0, 0.9), max_size=5),
    st.integers(0, 99),
)
def test_each_record_is_accepted_once_regardless_of_rejections(
    sizes: list[int], refusing: list[float], seed: int
) -> None:
    stream = Stream(*refusing, seed=seed)
    records = [OutgoingRecord(str(at).encode().ljust(size, b"."), "1") for at, size in enumerate(sizes)]

    assert StreamWriter(stream, "events", sleep=lambda seconds: None, seed=1).put(records) == []

    assert Counter(each["Data"] for each in stream.taken) == Counter(record.data for record in records)


def test_only_rejected_records_are_resent_with_backoff() -> None:
    stream, waits = Stream(0.5, 0.5, 0.5), list[float]()
    StreamWriter(stream, "events", sleep=waits.append, seed=1).put([OutgoingRecord(b"x", "1")] * 100)

    assert stream.calls == sorted(stream.calls, reverse=True)
    assert len(stream.calls) == len(set(stream.calls)) == 4
    assert sum(stream.calls[1:]) < 100
    assert waits == sorted(waits)


def test_a_completely_failed_call_is_retried() -> None:
    stream = Stream(None, None)
    StreamWriter(stream, "events", sleep=lambda seconds: None).put([OutgoingRecord(b"x", "1")])

    assert len(stream.taken) == 1


def test_permanently_rejected_records_are_returned_and_may_be_sent_again() -> None:
    stream = Stream(*[1.0] * 8)
    refusals = StreamWriter(stream, "events", sleep=lambda seconds: None).put([OutgoingRecord(b"x", "1")] * 3)

    assert refusals == [RejectedRecord(index, "ProvisionedThroughputExceededException") for index in range(3)]


class PoisonedStream(Stream):
    """A stream that refuses any call with a poisoned record in it, as Kinesis does for records of a wrong size."""

    def put_records(self, *, StreamName: str, Records: list[dict[str, Any]]) -> dict[str, Any]:
        poisoned = [at for at, each in enumerate(Records, 1) if each["Data"].startswith(b"poison")]
        if poisoned:
            error = {"Code": "ValidationException", "Message": f"Value at 'records.{poisoned[0]}.member.data' failed"}
            raise ClientError({"Error": error}, "PutRecords")
        return super().put_records(StreamName=StreamName, Records=Records)


@given(st.lists(st.booleans(), min_size=1, max_size=700))
def test_records_that_fail_a_call_do_not_affect_others(poisoned: list[bool]) -> None:
    stream, waits = PoisonedStream(), list[float]()
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
def test_a_call_rejected_for_its_stream_or_permissions_blames_no_record(code: str) -> None:
    class Closed(Stream):
        def put_records(self, **call: Any) -> dict[str, Any]:
            raise ClientError({"Error": {"Code": code, "Message": "Value at 'streamName' failed"}}, "PutRecords")

    [refusal] = StreamWriter(Closed(), "events", sleep=lambda seconds: None).put([OutgoingRecord(b"x", "1")])

    assert refusal.status is None
