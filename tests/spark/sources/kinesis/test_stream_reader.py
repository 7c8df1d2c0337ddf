"""The Kinesis source in real queries: replays, resharding, limits, expiry, and published code.

Those marked `integration` have twins without a JVM in tests/unit/sources/kinesis: test_exactly_once.py (resharding
while a query runs, actions that read again), test_planner.py (latest positions, idle queries, expired positions),
test_client.py (expired iterators, throttling) and test_options.py (the state of each source).
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from deltaworks.sources.spark_formats.data_sources import register
from sandbox.servers.moto_kinesis import MotoKinesis
from tests.kinesis_server import WireStream
from tests.spark.sources.kinesis.conftest import QueryHarness, Server
from tests.waiting import eventually

Make = Callable[..., QueryHarness]


def numbers(begin: int, end: int) -> list[str]:
    return [str(number) for number in range(begin, end)]


def test_the_format_is_found_without_registration_and_returns_every_column(make_harness: Make) -> None:
    harness = make_harness()
    harness.put("hello", key="player 1")

    assert harness.drain() == ["hello"]

    (row,) = harness.batches[0].rows
    assert row["stream"] == harness.name
    assert row["shardId"] == "shardId-000000000000"
    assert len(row["sequenceNumber"]) == 56
    assert row["subSequenceNumber"] is None
    assert row["partitionKey"] == "player 1"
    assert row["ordinal"] == 0
    assert abs(row["approximateArrivalTimestamp"].timestamp() - os.stat(harness.root).st_mtime) < 120


@pytest.mark.integration
def test_registering_it_again_changes_nothing(make_harness: Make, spark: SparkSession) -> None:
    harness = make_harness()
    harness.put("a")
    register(spark)
    register(spark)
    assert harness.drain() == ["a"]


@pytest.mark.parametrize("state", ["file", pytest.param("s3", marks=pytest.mark.integration)])
def test_two_actions_get_equal_rows_although_more_arrive_between_them(make_harness: Make, state: str) -> None:
    harness = make_harness(shards=2, state=state)
    harness.put(*numbers(0, 150))
    harness.actions = 2
    harness.between = lambda action: harness.put(*numbers(150, 200)) if len(harness.batches) == 1 else None

    query = harness.start(trigger={"processingTime": "0 seconds"})
    eventually(lambda: len(harness.batches) >= 4, "the second batch")
    query.stop()

    first, again, second, second_again = harness.batches[:4]
    assert (len(first.rows), first.digest) == (150, again.digest)
    assert sorted(map(int, second.texts)) == list(range(150, 200))
    assert second.digest == second_again.digest


def test_available_now_drains_ends_and_resumes(make_harness: Make) -> None:
    harness = make_harness(shards=2)
    harness.put(*numbers(0, 50))
    assert sorted(harness.drain(maxRecords=20), key=int) == numbers(0, 50)
    assert len(harness.batches) >= 3
    assert all(len(batch.rows) <= 20 for batch in harness.batches)
    ran = len(harness.batches)
    assert harness.drain() == []
    assert len(harness.batches) == ran, "an idle run makes no batch"
    harness.put("50")
    assert harness.drain() == ["50"]


@pytest.mark.integration
def test_splits_and_merges_under_lag_lose_and_repeat_nothing(make_harness: Make) -> None:
    harness = make_harness()
    harness.put(*numbers(0, 500))
    harness.split(0)
    harness.put(*numbers(500, 1000))
    harness.merge(1, 2)
    harness.put(*numbers(1000, 1500))

    texts = harness.drain(maxRecords=200)

    assert sorted(texts, key=int) == numbers(0, 1500)
    generation = {"0": 0, "1": 1, "2": 1, "3": 2}
    read = [sorted({generation[row["shardId"][-1]] for row in batch.rows}) for batch in harness.batches if batch.rows]
    assert all(len(each) == 1 for each in read), "no batch has a child beside its parent"
    flat = [each for (each,) in read]
    assert flat == sorted(flat)
    assert set(flat) == {0, 1, 2}


@pytest.mark.integration
def test_a_running_query_follows_a_stream_that_is_resharded(make_harness: Make) -> None:
    harness = make_harness()
    harness.put(*numbers(0, 100))
    query = harness.start(trigger={"processingTime": "0 seconds"})
    eventually(lambda: len(texts(harness)) == 100, "the first records")
    harness.split(0)
    harness.put(*numbers(100, 200))
    eventually(lambda: len(texts(harness)) == 200, "the children's records")
    harness.merge(1, 2)
    harness.put(*numbers(200, 300))
    eventually(lambda: len(texts(harness)) == 300, "the merged shard's records")
    progress = query.lastProgress
    query.stop()

    assert sorted(texts(harness), key=int) == numbers(0, 300)
    assert progress is not None
    report = json.loads(progress.json)["sources"][0]["latestOffset"]
    assert report["gaps"] == 0
    assert set(report["millis_behind_latest"].values()) <= {0}


def texts(harness: QueryHarness) -> list[str]:
    return [text for batch in list(harness.batches) for text in batch.texts]


@pytest.mark.integration
def test_an_idle_query_makes_no_batches(make_harness: Make) -> None:
    harness = make_harness(shards=2)
    harness.put("a")
    query = harness.start(trigger={"processingTime": "0 seconds"})
    eventually(lambda: texts(harness) == ["a"], "the record")
    ran = len(harness.batches)
    query.processAllAvailable()
    eventually(lambda: query.status["message"].startswith("Waiting"), "idling")

    harness.put("b")
    eventually(lambda: texts(harness) == ["a", "b"], "the next record")
    query.stop()

    assert len(harness.batches) <= ran + 2


@pytest.mark.integration
def test_latest_is_resolved_once_and_survives_a_restart_without_a_batch(make_harness: Make) -> None:
    harness = make_harness()
    harness.put("before")
    assert harness.drain(initialPosition="latest") == []
    harness.put("after")
    assert harness.drain(initialPosition="latest") == ["after"]


def test_rows_are_read_in_tasks_by_several_processes(make_harness: Make) -> None:
    harness = make_harness(shards=4)
    harness.put(*numbers(0, 100))
    harness.drain()

    ends = [json.loads(path.read_text()) for path in Path(harness.root / "state").rglob("*/shardId-*.json")]
    readers = [end["reader"].split("/")[:2] for end in ends if end["rows"]]
    assert {host for host, _ in readers} == {socket.gethostname()}
    assert str(os.getpid()) not in {process for _, process in readers}
    assert len({process for _, process in readers}) > 1


def test_byte_limits_are_respected_and_a_huge_record_gets_its_own_batch(make_harness: Make) -> None:
    harness = make_harness()
    huge = (1 << 20) - 1
    for size in (400, 400, 400, huge, 1, 1):
        harness.put("x", data=b"x" * size)

    harness.drain(maxBytes=1000)

    sizes = [[len(row["data"]) for row in batch.rows] for batch in harness.batches]
    assert [each for each in sizes if each] == [[400, 400], [400], [huge], [1, 1]]


def test_empty_and_unusual_records_arrive_unchanged(make_harness: Make) -> None:
    harness = make_harness()
    harness.put("x", data=b"\x00\xff\xfe not text", key="ключ \u2603")
    harness.put("x", data=b"\xf3\x89\x9a\xc2 looks aggregated, is not")
    harness.drain()

    (batch,) = [batch for batch in harness.batches if batch.rows]
    assert [row["data"] for row in batch.rows] == [
        b"\x00\xff\xfe not text",
        b"\xf3\x89\x9a\xc2 looks aggregated, is not",
    ]
    assert batch.rows[0]["partitionKey"] == "ключ \u2603"


@pytest.mark.integration
def test_a_position_older_than_the_retention_stops_the_query_with_shard_and_range(make_harness: Make) -> None:
    harness = make_harness()
    harness.put("a", "b")
    harness.drain()
    age_state(harness, hours=30)
    harness.age(30)
    harness.put("c")

    with pytest.raises(StreamingQueryException, match="KINESIS_POSITION_EXPIRED") as stopped:
        harness.drain()

    assert "shardId-000000000000" in str(stopped.value)
    assert harness.drain(allowDataLoss="true") == ["c"]
    (gap,) = [json.loads(path.read_text()) for path in Path(harness.root / "state" / "gaps").rglob("*.json")]
    assert gap["shard_id"] == "shardId-000000000000"
    assert harness.drain() == []


def age_state(harness: QueryHarness, *, hours: float) -> None:
    """Make the query's last reading older, in the record that ends its last batch."""
    from datetime import datetime, timedelta

    for path in Path(harness.root / "state").rglob("*/shardId-*.json"):
        end = json.loads(path.read_text())
        since = datetime.fromisoformat(end["end"]["since"]) - timedelta(hours=hours)
        end["end"]["since"] = since.isoformat()
        path.write_text(json.dumps(end))


@pytest.mark.integration
def test_throttling_is_retried(make_harness: Make, switches: MotoKinesis) -> None:
    harness = make_harness()
    harness.put(*numbers(0, 300))
    switches.throttle, switches.reads_per_second = True, 1

    found = harness.drain(maxRecords=50)

    assert sorted(found, key=int) == numbers(0, 300)
    assert switches.throttled > 0


@pytest.mark.integration
def test_expired_iterators_are_replaced(make_harness: Make, switches: MotoKinesis) -> None:
    harness = make_harness()
    harness.put("a")
    query = harness.start(trigger={"processingTime": "0 seconds"})
    eventually(lambda: texts(harness) == ["a"], "the first record")
    # The driver keeps an iterator for an idle shard.
    switches.iterator_seconds = 0.5
    eventually(lambda: switches.expired > 0, "an expired iterator")
    harness.put("b")
    eventually(lambda: texts(harness) == ["a", "b"], "the next record")
    query.stop()

    assert query.exception() is None
    assert [row["ordinal"] for batch in harness.batches for row in batch.rows] == [0, 1]


#: Keys as code gets them from a secret store: literal values.
AWS_ACCESS_KEY, AWS_SECRET_KEY = "testing", "testing/with+characters="


@pytest.fixture
def stream(kinesis_server: Server) -> WireStream:
    return WireStream(kinesis_server.kinesis)


def run(frame: DataFrame, root: Path) -> None:
    """Appends the stream to Parquet files until it is empty."""
    query = (
        frame.selectExpr("CAST(data AS STRING) AS text", "shardId")
        .writeStream.format("parquet")
        .option("path", f"{root}/output")
        .option("checkpointLocation", f"{root}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)


def drain(frame: DataFrame, root: Path) -> list[str]:
    """Runs the query; returns all texts in its output."""
    run(frame, root)
    rows = frame.sparkSession.read.schema("text string").parquet(f"{root}/output").collect()
    return sorted((row["text"] for row in rows), key=int)


def test_a_snippet_with_literal_keys_restarts_across_a_reshard_without_loss_or_duplicates(
    spark: SparkSession, kinesis_server: Server, stream: WireStream, tmp_path: Path
) -> None:
    def records() -> DataFrame:
        return (
            spark.readStream.format("kinesis")
            .option("streamName", stream.name)
            .option("region", "us-east-1")
            .option("endpointUrl", kinesis_server.endpoint)
            .option("initialPosition", "TRIM_HORIZON")
            .option("awsAccessKey", AWS_ACCESS_KEY)
            .option("awsSecretKey", AWS_SECRET_KEY)
            .load()
        )

    stream.put(*numbers(0, 50))
    assert drain(records(), tmp_path) == numbers(0, 50)
    stream.put(*numbers(50, 80))
    stream.split(0)
    stream.put(*numbers(80, 120))
    assert drain(records(), tmp_path) == numbers(0, 120)
    assert drain(records(), tmp_path) == numbers(0, 120)

    assert [path.name for path in (tmp_path / "checkpoint" / "sources").iterdir()] == ["kinesis-0"]
    stored = b"".join(path.read_bytes() for path in (tmp_path / "checkpoint").rglob("*") if path.is_file())
    assert AWS_SECRET_KEY.encode() not in stored


def test_published_columns_are_there(
    spark: SparkSession, kinesis_server: Server, stream: WireStream, tmp_path: Path
) -> None:
    events = (
        spark.readStream.format("kinesis")
        .option("streamName", stream.name)
        .option("endpointUrl", kinesis_server.endpoint)
        .option("startingposition", "earliest")
        .option("awsAccessKeyId", AWS_ACCESS_KEY)
        .option("awsSecretKey", AWS_SECRET_KEY)
        .load()
    )
    seen: list[dict[str, Any]] = []
    decoded = events.selectExpr(
        *("partitionKey", "CAST(data AS STRING) AS data", "stream", "shardId", "sequenceNumber"),
        "approximateArrivalTimestamp",
    )
    stream.put("hello", key="player 1")
    query = (
        decoded.writeStream.foreachBatch(lambda batch, _: seen.extend(row.asDict() for row in batch.collect()))
        .option("checkpointLocation", f"{tmp_path}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)

    assert dict(events.dtypes)["data"] == "binary"
    assert dict(events.dtypes)["approximateArrivalTimestamp"] == "timestamp"
    (row,) = seen
    assert (row["partitionKey"], row["data"], row["stream"]) == ("player 1", "hello", stream.name)
    assert row["shardId"] == "shardId-000000000000"


@pytest.mark.integration
def test_two_sources_of_one_query_over_one_stream_each_have_a_state(
    spark: SparkSession, kinesis_server: Server, stream: WireStream, tmp_path: Path
) -> None:
    options = {
        "streamName": stream.name,
        "endpointUrl": kinesis_server.endpoint,
        "initialPosition": "earliest",
        "awsAccessKey": AWS_ACCESS_KEY,
        "awsSecretKey": AWS_SECRET_KEY,
    }
    stream.put(*numbers(0, 3))
    first, second = (spark.readStream.format("kinesis").options(**options).load() for _ in range(2))

    assert drain(first.union(second), tmp_path) == sorted([*numbers(0, 3), *numbers(0, 3)], key=int)


@pytest.mark.integration
def test_latest_reads_only_later_records(
    spark: SparkSession, kinesis_server: Server, stream: WireStream, tmp_path: Path
) -> None:
    def records() -> DataFrame:
        return (
            spark.readStream.format("kinesis")
            .option("streamName", stream.name)
            .option("endpointUrl", kinesis_server.endpoint)
            .option("initialPosition", "LATEST")
            .option("awsAccessKey", AWS_ACCESS_KEY)
            .option("awsSecretKey", AWS_SECRET_KEY)
            .load()
        )

    stream.put("1")
    run(records(), tmp_path)
    stream.put("2")
    assert drain(records(), tmp_path) == ["2"]
