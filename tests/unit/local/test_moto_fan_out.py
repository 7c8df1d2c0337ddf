"""moto with enhanced fan-out: consumers and subscriptions are as Kinesis', as boto3 itself reads them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError
from moto.server import ThreadedMotoServer

from deltaworks.local.moto_corrections import correct_moto
from deltaworks.local.moto_kinesis import MotoKinesis

REGION = "us-east-1"
A = "shardId-000000000000"


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    correct_moto()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    once = Config(retries={"total_max_attempts": 1})
    yield boto3.client("kinesis", endpoint_url=f"http://{host}:{port}", region_name=REGION, config=once, **keys)
    server.stop()


@pytest.fixture(autouse=True)
def switches() -> Iterator[MotoKinesis]:
    before, MotoKinesis.current = MotoKinesis.current, MotoKinesis(heartbeat_seconds=0.1, taken_seconds=0.0)
    yield MotoKinesis.current
    MotoKinesis.current = before


class Stream:
    """A stream of its own on the server, and its consumers."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.name = f"games-{uuid.uuid4().hex[:8]}"
        client.create_stream(StreamName=self.name, ShardCount=1)
        self.arn = client.describe_stream_summary(StreamName=self.name)["StreamDescriptionSummary"]["StreamARN"]

    def put(self, *texts: str) -> list[str]:
        records = [{"Data": text.encode(), "PartitionKey": text} for text in texts]
        answer = self.client.put_records(StreamName=self.name, Records=records)
        return [record["SequenceNumber"] for record in answer["Records"]]

    def register(self, name: str) -> str:
        answer = self.client.register_stream_consumer(StreamARN=self.arn, ConsumerName=name)
        return str(answer["Consumer"]["ConsumerARN"])

    def names(self) -> list[str]:
        return [each["ConsumerName"] for each in self.client.list_stream_consumers(StreamARN=self.arn)["Consumers"]]

    def subscribe(self, consumer: str, kind: str = "TRIM_HORIZON", **more: Any) -> Any:
        place = {"Type": kind, **more}
        answer = self.client.subscribe_to_shard(ConsumerARN=consumer, ShardId=A, StartingPosition=place)
        return answer["EventStream"]


def texts(event: Any) -> list[str]:
    return [record["Data"].decode() for record in event["SubscribeToShardEvent"]["Records"]]


@pytest.fixture
def stream(client: Any) -> Stream:
    return Stream(client)


def test_a_name_is_registered_once_and_removing_it_leaves_the_others(stream: Stream) -> None:
    first, other = stream.register("games"), stream.register("other")
    with pytest.raises(ClientError, match="ResourceInUseException"):
        stream.register("games")

    stream.client.deregister_stream_consumer(StreamARN=stream.arn, ConsumerName="games")

    assert stream.names() == ["other"]
    assert stream.register("games") != first
    stream.client.deregister_stream_consumer(ConsumerARN=other)
    assert stream.names() == ["games"]


def test_a_consumer_is_active_after_a_while(stream: Stream, switches: MotoKinesis) -> None:
    switches.creating_seconds = 3600.0
    arn = stream.register("games")

    def status() -> str:
        found = stream.client.describe_stream_consumer(ConsumerARN=arn)
        return str(found["ConsumerDescription"]["ConsumerStatus"])

    assert status() == "CREATING"
    switches.creating_seconds = 0.0
    assert status() == "ACTIVE"


def test_boto3_reads_events_with_records_and_without(stream: Stream) -> None:
    numbers = stream.put("a", "b")
    events = iter(stream.subscribe(stream.register("games")))
    first, idle = next(events), next(events)
    stream.put("c")
    later = next(event for event in events if texts(event))

    assert (texts(first), texts(idle), texts(later)) == (["a", "b"], [], ["c"])
    assert idle["SubscribeToShardEvent"]["ContinuationSequenceNumber"] == numbers[-1]
    assert idle["SubscribeToShardEvent"]["MillisBehindLatest"] == 0
    assert "ChildShards" not in idle["SubscribeToShardEvent"]


def test_subscriptions_begin_where_they_are_asked_to(stream: Stream) -> None:
    numbers, consumer = stream.put("a", "b", "c"), stream.register("games")

    def first(kind: str, **more: Any) -> list[str]:
        return texts(next(iter(stream.subscribe(consumer, kind, **more))))

    assert first("TRIM_HORIZON") == ["a", "b", "c"]
    assert first("AT_SEQUENCE_NUMBER", SequenceNumber=numbers[1]) == ["b", "c"]
    assert first("AFTER_SEQUENCE_NUMBER", SequenceNumber=numbers[1]) == ["c"]
    assert first("LATEST") == []


def test_the_end_of_a_closed_shard_names_its_children(stream: Stream) -> None:
    stream.put("a")
    stream.client.split_shard(StreamName=stream.name, ShardToSplit=A, NewStartingHashKey=str(1 << 127))

    *_, last = stream.subscribe(stream.register("games"))

    assert texts(last) == ["a"]
    children = [each["ShardId"] for each in last["SubscribeToShardEvent"]["ChildShards"]]
    assert children == ["shardId-000000000001", "shardId-000000000002"]


def test_a_second_subscription_is_refused_at_first_and_takes_over_later(stream: Stream, switches: MotoKinesis) -> None:
    switches.taken_seconds = 0.5
    consumer = stream.register("games")
    first = iter(stream.subscribe(consumer))
    next(first)
    with pytest.raises(ClientError, match="ResourceInUseException"):
        stream.subscribe(consumer)
    time.sleep(0.6)

    assert texts(next(iter(stream.subscribe(consumer)))) == []
    with pytest.raises(EventStreamError, match="ResourceInUseException"):
        list(first)


def test_a_subscription_ends_after_its_time(stream: Stream, switches: MotoKinesis) -> None:
    switches.subscription_seconds = 0.5

    events = list(stream.subscribe(stream.register("games")))

    assert 2 <= len(events) <= 6
