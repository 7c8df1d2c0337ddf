"""A corrected moto server, separate streams, and queries that record the rows of each batch and action."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from sandbox.servers.moto_kinesis import MotoKinesis
from tests.kinesis_server import HALF, KEYS, WireStream, kinesis_client, running_kinesis, switched

HERE = Path(__file__).resolve().parent
# At import, so before any session starts its JVM: workers inherit what the JVM was started with.
os.environ.setdefault("DELTAWORKS_AWS_ACCESS_KEY", "testing")
os.environ.setdefault("DELTAWORKS_AWS_SECRET_KEY", "testing")


@dataclass
class Server:
    endpoint: str
    kinesis: Any
    s3: Any


@pytest.fixture(scope="session")
def kinesis_server() -> Iterator[Server]:
    with running_kinesis() as endpoint:
        yield Server(endpoint, kinesis_client(endpoint), boto3.client("s3", endpoint_url=endpoint, **KEYS))


@pytest.fixture
def switches() -> Iterator[MotoKinesis]:
    with switched() as switches:
        yield switches


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
    return sorted(found, key=lambda row: (row["shardId"], row["ordinal"]))


@dataclass
class QueryHarness:
    """A stream and the queries on it."""

    server: Server
    spark: SparkSession
    root: Path
    stream: WireStream
    batches: list[Batch] = field(default_factory=list)
    actions: int = 1
    between: Callable[[int], None] | None = None
    state: str = ""

    @property
    def name(self) -> str:
        return self.stream.name

    def put(self, *texts: str, key: str | None = None, data: bytes | None = None) -> None:
        self.stream.put(*texts, key=key, data=data)

    def split(self, shard: int, at: str = HALF) -> None:
        self.stream.split(shard, at)

    def merge(self, left: int, right: int) -> None:
        self.stream.merge(left, right)

    def age(self, hours: float) -> None:
        self.stream.age(hours)

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


@pytest.fixture
def make_harness(kinesis_server: Server, spark: SparkSession, tmp_path: Path) -> Callable[..., QueryHarness]:
    def make(*, shards: int = 1, state: str = "file") -> QueryHarness:
        stream = WireStream(kinesis_server.kinesis, shards)
        harness = QueryHarness(kinesis_server, spark, tmp_path, stream, state=f"file://{tmp_path}/state")
        if state == "s3":
            kinesis_server.s3.create_bucket(Bucket=harness.name)
            harness.state = f"s3://{harness.name}/state"
        return harness

    return make
