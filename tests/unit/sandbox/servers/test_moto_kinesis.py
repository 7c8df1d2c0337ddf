"""moto's Kinesis, corrected: resharding, iterators, sequence numbers, expiry and throttling are as in Kinesis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from sandbox.servers.moto_kinesis import MotoKinesis
from tests.kinesis_server import WireStream, kinesis_client, running_kinesis, shard_id, switched


class Stream(WireStream):
    """Read by iterators."""

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


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with running_kinesis() as endpoint:
        yield kinesis_client(endpoint)


@pytest.fixture
def switches() -> Iterator[MotoKinesis]:
    with switched() as found:
        yield found


def test_a_split_leaves_the_records_in_the_parent_and_gives_new_ones_to_the_children(client: Any) -> None:
    stream = Stream(client)
    stream.put("a", "b", "c")
    stream.split(0)

    landed = [each["ShardId"] for each in stream.put(*(str(number) for number in range(40)))]

    assert stream.all_of(shard_id(0)) == (["a", "b", "c"], True)
    assert set(landed) == {shard_id(1), shard_id(2)}
    (left, left_ended), (right, right_ended) = stream.all_of(shard_id(1)), stream.all_of(shard_id(2))
    assert sorted(left + right, key=int) == [str(number) for number in range(40)]
    assert not left_ended
    assert not right_ended


def test_a_merge_leaves_the_records_in_both_parents(client: Any) -> None:
    stream = Stream(client, shards=2)
    before = [each["ShardId"] for each in stream.put(*(str(number) for number in range(20)))]
    stream.merge(0, 1)

    assert {each["ShardId"] for each in stream.put("later", "and later")} == {shard_id(2)}

    (left, left_ended), (right, right_ended) = stream.all_of(shard_id(0)), stream.all_of(shard_id(1))
    assert len(left) == before.count(shard_id(0))
    assert sorted(left + right, key=int) == [str(number) for number in range(20)]
    assert left_ended
    assert right_ended
    assert stream.all_of(shard_id(2)) == (["later", "and later"], False)


def test_the_lineage_and_the_end_of_a_shard_are_listed(client: Any) -> None:
    stream = Stream(client, shards=2)
    stream.merge(0, 1)

    listed = stream.shards()

    assert listed[shard_id(2)]["ParentShardId"] == shard_id(0)
    assert listed[shard_id(2)]["AdjacentParentShardId"] == shard_id(1)
    ended = {name: "EndingSequenceNumber" in each["SequenceNumberRange"] for name, each in listed.items()}
    assert ended == {shard_id(0): True, shard_id(1): True, shard_id(2): False}


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

    assert [len(stream.all_of(shard_id(number))[0]) for number in (0, 1)] == [2, 2]


def test_only_the_tip_is_not_behind(client: Any) -> None:
    stream = Stream(client)
    stream.put("a", "b", "c")

    first = client.get_records(ShardIterator=stream.iterator(shard_id(0)), Limit=2)
    last = client.get_records(ShardIterator=first["NextShardIterator"], Limit=2)

    assert first["MillisBehindLatest"] > 0
    assert last["MillisBehindLatest"] == 0


def test_iterators_start_where_they_are_asked_to(client: Any) -> None:
    stream = Stream(client)
    stream.put("a")
    stream.age(1)
    stream.put("b", "c")
    records = client.get_records(ShardIterator=stream.iterator(shard_id(0)))["Records"]
    number, arrival = records[1]["SequenceNumber"], records[1]["ApproximateArrivalTimestamp"]

    def texts(kind: str, **more: Any) -> str:
        answer = client.get_records(ShardIterator=stream.iterator(shard_id(0), kind, **more))
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

    assert stream.all_of(shard_id(0)) == (["new"], False)


def test_an_iterator_expires(client: Any, switches: MotoKinesis) -> None:
    stream = Stream(client)
    stream.put("a")
    iterator = stream.iterator(shard_id(0))
    assert client.get_records(ShardIterator=iterator)["Records"]

    switches.iterator_seconds = -1.0

    with pytest.raises(ClientError, match="ExpiredIteratorException"):
        client.get_records(ShardIterator=iterator)
    assert switches.expired == 1


def test_a_shard_that_is_read_too_often_throttles_when_that_is_switched_on(client: Any, switches: MotoKinesis) -> None:
    stream = Stream(client, shards=2)
    iterators = [stream.iterator(shard_id(0)), stream.iterator(shard_id(1))]
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
