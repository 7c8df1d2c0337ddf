"""moto with enhanced fan-out: consumers and subscriptions are as Kinesis', as boto3 itself reads them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError, EventStreamError

from sandbox.servers.moto_kinesis import MotoKinesis
from tests.kinesis_server import WireStream, kinesis_client, running_kinesis, shard_id, switched

A = shard_id(0)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with running_kinesis() as endpoint:
        yield kinesis_client(endpoint)


@pytest.fixture(autouse=True)
def switches() -> Iterator[MotoKinesis]:
    with switched(heartbeat_seconds=0.1, takeover_seconds=0.0) as found:
        yield found


class Stream(WireStream):
    """Read by subscriptions."""

    def register(self, name: str) -> str:
        answer = self.client.register_stream_consumer(StreamARN=self.arn, ConsumerName=name)
        return str(answer["Consumer"]["ConsumerARN"])

    def names(self) -> list[str]:
        return [each["ConsumerName"] for each in self.client.list_stream_consumers(StreamARN=self.arn)["Consumers"]]

    def subscribe(self, consumer: str, kind: str = "TRIM_HORIZON", **more: Any) -> Any:
        place = {"Type": kind, **more}
        answer = self.client.subscribe_to_shard(ConsumerARN=consumer, ShardId=A, StartingPosition=place)
        return answer["EventStream"]


def sequence_numbers(landed: list[dict[str, str]]) -> list[str]:
    return [each["SequenceNumber"] for each in landed]


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
    numbers = sequence_numbers(stream.put("a", "b"))
    events = iter(stream.subscribe(stream.register("games")))
    first, idle = next(events), next(events)
    stream.put("c")
    later = next(event for event in events if texts(event))

    assert (texts(first), texts(idle), texts(later)) == (["a", "b"], [], ["c"])
    assert idle["SubscribeToShardEvent"]["ContinuationSequenceNumber"] == numbers[-1]
    assert idle["SubscribeToShardEvent"]["MillisBehindLatest"] == 0
    assert "ChildShards" not in idle["SubscribeToShardEvent"]


def test_subscriptions_begin_where_they_are_asked_to(stream: Stream) -> None:
    numbers, consumer = sequence_numbers(stream.put("a", "b", "c")), stream.register("games")

    def first(kind: str, **more: Any) -> list[str]:
        return texts(next(iter(stream.subscribe(consumer, kind, **more))))

    assert first("TRIM_HORIZON") == ["a", "b", "c"]
    assert first("AT_SEQUENCE_NUMBER", SequenceNumber=numbers[1]) == ["b", "c"]
    assert first("AFTER_SEQUENCE_NUMBER", SequenceNumber=numbers[1]) == ["c"]
    assert first("LATEST") == []


def test_the_end_of_a_closed_shard_names_its_children(stream: Stream) -> None:
    stream.put("a")
    stream.split(0)

    *_, last = stream.subscribe(stream.register("games"))

    assert texts(last) == ["a"]
    children = [each["ShardId"] for each in last["SubscribeToShardEvent"]["ChildShards"]]
    assert children == [shard_id(1), shard_id(2)]


def test_a_second_subscription_is_refused_at_first_and_takes_over_later(stream: Stream, switches: MotoKinesis) -> None:
    switches.takeover_seconds = 0.5
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
