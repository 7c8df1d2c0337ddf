"""`format("kinesis")` with published code: option names and columns of other connectors, no state location."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.kinesis_server import WireStream
from tests.spark.sources.kinesis.conftest import Server

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


def numbers(begin: int, end: int) -> list[str]:
    return [str(number) for number in range(begin, end)]


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
