"""Test servers for Kinesis: moto with corrections, and a separate stream per test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from botocore.config import Config
from moto.kinesis.models import kinesis_backends

from sandbox.servers.moto_corrections import correct_moto
from sandbox.servers.moto_kinesis import MotoKinesis
from tests.moto_server import running_moto
from tests.unit.sources.kinesis.stream_model import shard_id

REGION = "us-east-1"
KEYS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": REGION}
#: A hash key that divides all keys into two halves.
HALF = str(1 << 127)

__all__ = ["HALF", "KEYS", "WireStream", "kinesis_client", "running_kinesis", "shard_id", "switched"]


@contextmanager
def running_kinesis() -> Iterator[str]:
    """Serves Kinesis in this process; yields the address."""
    correct_moto()
    with running_moto() as address:
        yield address


def kinesis_client(endpoint: str) -> Any:
    """Returns boto3's client without retries."""
    return boto3.client("kinesis", endpoint_url=endpoint, config=Config(retries={"total_max_attempts": 1}), **KEYS)


@contextmanager
def switched(**switches: Any) -> Iterator[MotoKinesis]:
    """Sets the server's switches and restores them afterwards."""
    before, MotoKinesis.current = MotoKinesis.current, MotoKinesis(**switches)
    try:
        yield MotoKinesis.current
    finally:
        MotoKinesis.current = before


class WireStream:
    """A separate stream on the server."""

    def __init__(self, client: Any, shards: int = 1) -> None:
        self.client = client
        self.name = f"games-{uuid.uuid4().hex[:8]}"
        client.create_stream(StreamName=self.name, ShardCount=shards)

    @property
    def arn(self) -> str:
        """The stream's ARN."""
        summary = self.client.describe_stream_summary(StreamName=self.name)
        return str(summary["StreamDescriptionSummary"]["StreamARN"])

    def put(self, *texts: str, key: str | None = None, data: bytes | None = None) -> list[dict[str, str]]:
        """Puts records with these texts, or with `data`; returns each record's shard and sequence number."""
        records = [{"Data": data or text.encode(), "PartitionKey": key or text} for text in texts]
        landed: list[dict[str, str]] = []
        for begin in range(0, len(records), 500):
            answer = self.client.put_records(StreamName=self.name, Records=records[begin : begin + 500])
            landed += answer["Records"]
        return landed

    def split(self, shard: int, at: str = HALF) -> None:
        """Splits a shard in two."""
        self.client.split_shard(StreamName=self.name, ShardToSplit=shard_id(shard), NewStartingHashKey=at)

    def merge(self, left: int, right: int) -> None:
        """Merges two adjacent shards."""
        merged = {"ShardToMerge": shard_id(left), "AdjacentShardToMerge": shard_id(right)}
        self.client.merge_shards(StreamName=self.name, **merged)

    def age(self, hours: float) -> None:
        """Makes all present records older."""
        backends = (regions[REGION] for regions in kinesis_backends.values())
        stream = next(each.streams[self.name] for each in backends if self.name in each.streams)
        for shard in stream.shards.values():
            for record in shard.records.values():
                record.created_at -= hours * 3600
