"""A stream is split and merged while objects pass, and each record stays in the shard that accepted it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandbox.demo.collector_delivery import ReshardingSink
from sandbox.servers.landing import landing_client
from tests.kinesis_server import running_kinesis

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
