"""A corrected moto server, streams of their own on it, and queries that note what each batch and action got."""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pytest
from moto.kinesis.models import kinesis_backends
from moto.server import ThreadedMotoServer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from deltaworks.local.moto_corrections import correct_moto
from deltaworks.local.moto_kinesis import MotoKinesis

HERE = Path(__file__).resolve().parent
# At import, so before any session starts its JVM: workers inherit what the JVM was started with.
os.environ.setdefault("DELTAWORKS_AWS_ACCESS_KEY", "testing")
os.environ.setdefault("DELTAWORKS_AWS_SECRET_KEY", "testing")
KEYS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
HALF = str(1 << 127)


@dataclass
class Server:
    endpoint: str
    kinesis: Any
    s3: Any


@pytest.fixture(scope="session")
def kinesis_server() -> Iterator[Server]:
    correct_moto()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    yield Server(
        endpoint,
        boto3.client("kinesis", endpoint_url=endpoint, **KEYS),
        boto3.client("s3", endpoint_url=endpoint, **KEYS),
    )
    server.stop()


@pytest.fixture
def switches() -> Iterator[MotoKinesis]:
    before = MotoKinesis.current
    MotoKinesis.current = MotoKinesis()
    yield MotoKinesis.current
    MotoKinesis.current = before


@dataclass
class Batch:
    """One action of one batch: its rows in order of shard and ordinal."""

    batch_id: int
    rows: list[dict[str, Any]]

    @property
    def digest(self) -> str:
        return hashlib.md5(repr(self.rows).encode()).hexdigest()

    @property
    def texts(self) -> list[str]:
        return [row["data"].decode(errors="replace") for row in self.rows]


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    found = [{**row, "data": bytes(row["data"])} for row in table.to_pylist()]
    return sorted(found, key=lambda row: (row["shard_id"], row["ordinal"]))


@dataclass
class Stage:
    """A stream and the queries on it."""

    server: Server
    spark: SparkSession
    root: Path
    name: str
    batches: list[Batch] = field(default_factory=list)
    actions: int = 1
    between: Callable[[int], None] | None = None
    state: str = ""

    def put(self, *texts: str, key: str | None = None, data: bytes | None = None) -> None:
        records = [{"Data": data or text.encode(), "PartitionKey": key or text} for text in texts]
        for begin in range(0, len(records), 500):
            self.server.kinesis.put_records(StreamName=self.name, Records=records[begin : begin + 500])

    def split(self, shard: int, at: str = HALF) -> None:
        self.server.kinesis.split_shard(StreamName=self.name, ShardToSplit=shard_id(shard), NewStartingHashKey=at)

    def merge(self, left: int, right: int) -> None:
        self.server.kinesis.merge_shards(
            StreamName=self.name, ShardToMerge=shard_id(left), AdjacentShardToMerge=shard_id(right)
        )

    def age(self, hours: float) -> None:
        """Make every record that is there older."""
        backends = (regions["us-east-1"] for regions in kinesis_backends.values())
        stream = next(each.streams[self.name] for each in backends if self.name in each.streams)
        for shard in stream.shards.values():
            for record in shard.records.values():
                record.created_at -= hours * 3600

    def options(self, **more: Any) -> dict[str, Any]:
        references = {"accessKey": "env:DELTAWORKS_AWS_ACCESS_KEY", "secretKey": "env:DELTAWORKS_AWS_SECRET_KEY"}
        for_state: Mapping[str, Any] = {}
        if self.state.startswith("s3://"):
            for_state = {"stateEndpoint": self.server.endpoint, "statePathStyle": "true"} | {
                f"state{name[0].upper()}{name[1:]}": value for name, value in references.items()
            }
        given = {"streamName": self.name, "endpoint": self.server.endpoint, "stateLocation": self.state}
        return {**given, **references, **for_state, **more}

    def start(self, *, checkpoint: str = "c1", trigger: dict[str, Any] | None = None, **more: Any) -> StreamingQuery:
        reader = self.spark.readStream.format("kinesis").options(**self.options(**more)).load()

        def note(frame: DataFrame, batch_id: int) -> None:
            for action in range(self.actions):
                self.batches.append(Batch(batch_id, rows_of(frame.toArrow())))
                if self.between is not None:
                    self.between(action)

        writer = reader.writeStream.foreachBatch(note).option("checkpointLocation", str(self.root / checkpoint))
        return writer.trigger(**trigger or {"availableNow": True}).start()

    def drain(self, **more: Any) -> list[str]:
        """The texts one AvailableNow run gives, in order of arrival."""
        first = len(self.batches)
        query = self.start(**more)
        assert query.awaitTermination(120)
        return [text for batch in self.batches[first:] for text in batch.texts]


def shard_id(number: int) -> str:
    return f"shardId-{number:012d}"


@pytest.fixture
def make_stage(kinesis_server: Server, spark: SparkSession, tmp_path: Path) -> Callable[..., Stage]:
    def make(*, shards: int = 1, state: str = "file") -> Stage:
        name = f"games-{uuid.uuid4().hex[:8]}"
        kinesis_server.kinesis.create_stream(StreamName=name, ShardCount=shards)
        stage = Stage(kinesis_server, spark, tmp_path, name, state=f"file://{tmp_path}/state")
        if state == "s3":
            kinesis_server.s3.create_bucket(Bucket=name)
            stage.state = f"s3://{name}/state"
        return stage

    return make


def eventually(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.1)
