"""moto's Kinesis, corrected: resharding, iterators, sequence numbers, expiry and throttling are as in Kinesis."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from moto.kinesis.models import kinesis_backends
from moto.server import ThreadedMotoServer

from deltaworks.local.moto_corrections import correct_moto
from deltaworks.local.moto_kinesis import MotoKinesis

REGION = "us-east-1"
HALF = str(1 << 127)


class Stream:
    """A stream of its own on the server."""

    def __init__(self, client: Any, shards: int = 1) -> None:
        self.client = client
        self.name = f"games-{uuid.uuid4().hex[:8]}"
        client.create_stream(StreamName=self.name, ShardCount=shards)

    def put(self, *texts: str, key: str | None = None) -> list[str]:
        records = [{"Data": text.encode(), "PartitionKey": key or text} for text in texts]
        answer = self.client.put_records(StreamName=self.name, Records=records)
        return [record["ShardId"] for record in answer["Records"]]

    def iterator(self, shard: str, kind: str = "TRIM_HORIZON", **more: Any) -> str:
        named = {"StreamName": self.name, "ShardId": shard, "ShardIteratorType": kind}
        return str(self.client.get_shard_iterator(**named, **more)["ShardIterator"])

    def all_of(self, shard: str) -> tuple[list[str], bool]:
        """The shard's records, and whether its end was told."""
        found, iterator = [], self.iterator(shard)
        while True:
            answer = self.client.get_records(ShardIterator=iterator, Limit=2)
            found += [record["Data"].decode() for record in answer["Records"]]
            if answer.get("NextShardIterator") is None:
                return found, True
            if not answer["Records"] and not answer["MillisBehindLatest"]:
                return found, False
            iterator = answer["NextShardIterator"]

    def shards(self) -> dict[str, dict[str, Any]]:
        return {shard["ShardId"]: shard for shard in self.client.list_shards(StreamName=self.name)["Shards"]}

    def age(self, hours: float) -> None:
        """Make every record older."""
        backends = (regions[REGION] for regions in kinesis_backends.values())
        stream = next(each.streams[self.name] for each in backends if self.name in each.streams)
        for shard in stream.shards.values():
            for record in shard.records.values():
                record.created_at -= hours * 3600


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


@pytest.fixture
def switches() -> Iterator[MotoKinesis]:
    before = MotoKinesis.current
    MotoKinesis.current = MotoKinesis()
    yield MotoKinesis.current
    MotoKinesis.current = before


def shard(number: int) -> str:
    return f"shardId-{number:012d}"


def test_a_split_leaves_the_records_in_the_parent_and_gives_new_ones_to_the_children(client: Any) -> None:
    stream = Stream(client)
    stream.put("a", "b", "c")
    client.split_shard(StreamName=stream.name, ShardToSplit=shard(0), NewStartingHashKey=HALF)

    landed = stream.put(*(str(number) for number in range(40)))

    assert stream.all_of(shard(0)) == (["a", "b", "c"], True)
    assert set(landed) == {shard(1), shard(2)}
    (left, left_ended), (right, right_ended) = stream.all_of(shard(1)), stream.all_of(shard(2))
    assert sorted(left + right, key=int) == [str(number) for number in range(40)]
    assert not left_ended
    assert not right_ended


def test_a_merge_leaves_the_records_in_both_parents(client: Any) -> None:
    stream = Stream(client, shards=2)
    before = stream.put(*(str(number) for number in range(20)))
    client.merge_shards(StreamName=stream.name, ShardToMerge=shard(0), AdjacentShardToMerge=shard(1))

    assert set(stream.put("later", "and later")) == {shard(2)}

    (left, left_ended), (right, right_ended) = stream.all_of(shard(0)), stream.all_of(shard(1))
    assert len(left) == before.count(shard(0))
    assert sorted(left + right, key=int) == [str(number) for number in range(20)]
    assert left_ended
    assert right_ended
    assert stream.all_of(shard(2)) == (["later", "and later"], False)


def test_the_lineage_and_the_end_of_a_shard_are_listed(client: Any) -> None:
    stream = Stream(client, shards=2)
    client.merge_shards(StreamName=stream.name, ShardToMerge=shard(0), AdjacentShardToMerge=shard(1))

    listed = stream.shards()

    assert listed[shard(2)]["ParentShardId"] == shard(0)
    assert listed[shard(2)]["AdjacentParentShardId"] == shard(1)
    ended = {name: "EndingSequenceNumber" in each["SequenceNumberRange"] for name, each in listed.items()}
    assert ended == {shard(0): True, shard(1): True, shard(2): False}


def test_sequence_numbers_are_long_grow_and_are_never_given_twice(client: Any) -> None:
    stream = Stream(client, shards=2)
    records = [{"Data": b"x", "PartitionKey": str(number)} for number in range(50)]
    numbers = [
        int(each["SequenceNumber"]) for each in client.put_records(StreamName=stream.name, Records=records)["Records"]
    ]

    assert numbers == sorted(set(numbers))
    assert all(len(str(number)) == 56 for number in numbers)
    assert numbers[1] - numbers[0] > 1


def test_every_hash_key_finds_an_open_shard(client: Any) -> None:
    stream = Stream(client, shards=2)
    for key in ("0", str((1 << 127) - 1), str(1 << 127), str((1 << 128) - 1)):
        client.put_record(StreamName=stream.name, Data=b"x", PartitionKey="any", ExplicitHashKey=key)

    assert [len(stream.all_of(shard(number))[0]) for number in (0, 1)] == [2, 2]


def test_only_the_tip_is_not_behind(client: Any) -> None:
    stream = Stream(client)
    stream.put("a", "b", "c")

    first = client.get_records(ShardIterator=stream.iterator(shard(0)), Limit=2)
    last = client.get_records(ShardIterator=first["NextShardIterator"], Limit=2)

    assert first["MillisBehindLatest"] > 0
    assert last["MillisBehindLatest"] == 0


def test_iterators_start_where_they_are_asked_to(client: Any) -> None:
    stream = Stream(client)
    stream.put("a")
    stream.age(1)
    stream.put("b", "c")
    records = client.get_records(ShardIterator=stream.iterator(shard(0)))["Records"]
    number, arrival = records[1]["SequenceNumber"], records[1]["ApproximateArrivalTimestamp"]

    def texts(kind: str, **more: Any) -> str:
        answer = client.get_records(ShardIterator=stream.iterator(shard(0), kind, **more))
        return "".join(record["Data"].decode() for record in answer["Records"])

    assert texts("AT_SEQUENCE_NUMBER", StartingSequenceNumber=number) == "bc"
    assert texts("AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=number) == "c"
    assert texts("AT_TIMESTAMP", Timestamp=arrival) == "bc"
    assert texts("LATEST") == ""


def test_records_expire_after_the_retention(client: Any) -> None:
    stream = Stream(client)
    stream.put("old")
    stream.age(25)
    stream.put("new")

    assert stream.all_of(shard(0)) == (["new"], False)


def test_an_iterator_expires(client: Any, switches: MotoKinesis) -> None:
    stream = Stream(client)
    stream.put("a")
    iterator = stream.iterator(shard(0))
    assert client.get_records(ShardIterator=iterator)["Records"]

    switches.iterator_seconds = -1.0

    with pytest.raises(ClientError, match="ExpiredIteratorException"):
        client.get_records(ShardIterator=iterator)
    assert switches.expired == 1


def test_a_shard_that_is_read_too_often_throttles_when_that_is_switched_on(client: Any, switches: MotoKinesis) -> None:
    stream = Stream(client, shards=2)
    iterators = [stream.iterator(shard(0)), stream.iterator(shard(1))]
    for _ in range(10):
        client.get_records(ShardIterator=iterators[0])
    switches.throttle = True
    for _ in range(5):
        client.get_records(ShardIterator=iterators[0])

    with pytest.raises(ClientError, match="ProvisionedThroughputExceededException") as refused:
        client.get_records(ShardIterator=iterators[0])

    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    client.get_records(ShardIterator=iterators[1])
    assert switches.throttled == 1
