"""`format("cloudFiles")` with the code that articles and manuals show, over a bucket and over its queue.

The snippet marked `integration` has its twin in tests/unit/sources/spark_formats/test_cloud_files.py, which
reads notifications and the first listing without a JVM.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.waiting import eventually


@pytest.fixture
def connection(landing: Any) -> dict[str, str]:
    """Options for a server that is not AWS; snippets have none of them but the keys."""
    landing.returns_after(20)
    return {
        "endpoint": landing.endpoint,
        "pathStyle": "true",
        "cloudFiles.awsAccessKey": "testing",
        "cloudFiles.awsSecretKey": "testing",
    }


def append(frame: DataFrame, root: Path) -> list[dict[str, Any]]:
    """Appends to Parquet files until all files are read; returns all rows in them."""
    query = (
        frame.writeStream.format("parquet")
        .option("path", f"{root}/output")
        .option("checkpointLocation", f"{root}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    rows = frame.sparkSession.read.schema(frame.schema).parquet(f"{root}/output").collect()
    return sorted((row.asDict() for row in rows), key=str)


def put(landing: Any, *numbers: int) -> None:
    for number in numbers:
        landing.put(f"clicks/{number:03}.json", body=b'{"id": %d}' % number)


def test_a_listing_snippet_restarts_without_loss_or_duplicates(
    spark: SparkSession, landing: Any, connection: dict[str, str], tmp_path: Path
) -> None:
    def clicks() -> DataFrame:
        return (
            spark.readStream.format("cloudFiles")
            .options(**connection)
            .option("cloudFiles.format", "json")
            .option("cloudFiles.region", "us-east-1")
            .option("cloudFiles.maxFilesPerTrigger", 2)
            .schema("id LONG")
            .load(f"s3://{landing.bucket}/clicks/")
        )

    put(landing, *range(5))
    assert [row["id"] for row in append(clicks(), tmp_path)] == list(range(5))
    put(landing, 2, 5, 6)
    assert [row["id"] for row in append(clicks(), tmp_path)] == list(range(7))
    assert [row["id"] for row in append(clicks(), tmp_path)] == list(range(7))
    states = [path.name for path in (tmp_path / "checkpoint" / "sources").iterdir()]
    assert [name.startswith("cloud_files-") for name in states] == [True]


def test_a_snippet_with_hints_has_the_column_of_rescued_data(
    spark: SparkSession, landing: Any, connection: dict[str, str], tmp_path: Path
) -> None:
    landing.put("clicks/1.json", body=b'{"id": 1, "price": "1.50"}\n{"id": "x", "price": 2, "new": true}')
    clicks = (
        spark.readStream.format("cloudFiles")
        .options(**connection)
        .option("cloudFiles.format", "json")
        .option("cloudFiles.schemaLocation", f"{tmp_path}/checkpoint")
        .option("cloudFiles.schemaHints", "id BIGINT, price STRING")
        .option("cloudFiles.schemaEvolutionMode", "rescue")
        .load(f"s3://{landing.bucket}/clicks")
    )

    good, bad = append(clicks, tmp_path)
    rows = sorted((good, bad), key=lambda row: row["id"] is None)
    assert clicks.columns == ["id", "price", "_rescued_data"]
    assert rows[0] == {"id": 1, "price": "1.50", "_rescued_data": None}
    assert json.loads(rows[1]["_rescued_data"])["id"] == "x"
    assert json.loads(rows[1]["_rescued_data"])["new"] is True


def test_the_option_for_rescued_data_adds_its_column_to_a_declared_schema(
    spark: SparkSession, landing: Any, connection: dict[str, str], tmp_path: Path
) -> None:
    landing.put("clicks/1.json", body=b'{"id": 1, "new": true}')
    clicks = (
        spark.readStream.format("cloudFiles")
        .options(**connection)
        .option("cloudFiles.format", "json")
        .option("rescuedDataColumn", "_rescued")
        .schema("id LONG")
        .load(f"s3://{landing.bucket}/clicks")
    )

    (row,) = append(clicks, tmp_path)
    assert json.loads(row["_rescued"])["new"] is True


@pytest.mark.integration
def test_a_notification_snippet_reads_existing_and_announced_files_once(
    spark: SparkSession, landing: Any, connection: dict[str, str], tmp_path: Path
) -> None:
    def clicks() -> DataFrame:
        return (
            spark.readStream.format("cloudFiles")
            .options(**connection)
            .option("cloudFiles.format", "json")
            .option("cloudFiles.useNotifications", "true")
            .option("cloudFiles.queueUrl", landing.queue_url)
            .option("cloudFiles.includeExistingFiles", "true")
            .option("cloudFiles.backfillInterval", "1 day")
            .schema("id LONG")
            .load(f"s3://{landing.bucket}/clicks")
        )

    put(landing, 1, 2)
    assert [row["id"] for row in append(clicks(), tmp_path)] == [1, 2]
    put(landing, 3)
    assert [row["id"] for row in append(clicks(), tmp_path)] == [1, 2, 3]
    assert landing.waiting() == (0, 0)


def test_a_running_query_finds_new_files(
    spark: SparkSession, landing: Any, connection: dict[str, str], tmp_path: Path
) -> None:
    seen: list[int] = []
    clicks = (
        spark.readStream.format("cloudFiles")
        .options(**connection)
        .option("cloudFiles.format", "csv")
        .option("header", "true")
        .schema("id LONG")
        .load(f"s3://{landing.bucket}/csv")
    )
    landing.put("csv/1.csv", body=b"id\n1\n2\n")
    query = (
        clicks.writeStream.foreachBatch(lambda batch, _: seen.extend(row["id"] for row in batch.collect()))
        .option("checkpointLocation", f"{tmp_path}/checkpoint")
        .trigger(processingTime="1 second")
        .start()
    )
    eventually(lambda: sorted(seen) == [1, 2], "the first file", seconds=60)
    landing.put("csv/2.csv", body=b"id\n3\n")
    eventually(lambda: sorted(seen) == [1, 2, 3], "the second file", seconds=60)
    query.stop()
    assert query.exception() is None


def test_a_snippet_without_columns_says_how_to_declare_them(
    spark: SparkSession, landing: Any, connection: dict[str, str]
) -> None:
    with pytest.raises(PySparkException, match="SOURCE_OPTION_INVALID") as raised:
        (
            spark.readStream.format("cloudFiles")
            .options(**connection)
            .option("cloudFiles.format", "json")
            .load(f"s3://{landing.bucket}/clicks")
        )
    assert "cloudFiles.schemaHints" in str(raised.value)
