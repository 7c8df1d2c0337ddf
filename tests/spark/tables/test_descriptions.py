"""Descriptions as Spark shows them, and streams and writers of Spark while they change."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from deltaworks.specs.descriptions import TableDescription
from deltaworks.tables.commit import Step
from deltaworks.tables.descriptions import ensure_described
from deltaworks.tables.lake import Lake
from deltaworks.testing import local_lake, present

pytestmark = pytest.mark.spark
KEY = "tables/shop/orders"
SCHEMA = pa.schema([("id", pa.string()), ("amount", pa.int64())])
FIRST = TableDescription(text="Orders of it's shop", columns={"id": "Id", "amount": "Price in cents"})
SECOND = TableDescription(text="All orders", columns={"id": "Id", "amount": "Price in euro cents"})


def append(lake: Lake, number: int) -> None:
    table = ensure_described(lake, KEY, SCHEMA, FIRST, user_metadata="{}")
    rows = pa.table({"id": [str(number)], "amount": [number]}, schema=SCHEMA)
    lake.append(table, KEY, rows, step=Step("rows", number), user_metadata="{}")


def count(lake: Lake) -> int:
    rows = lake.rows("seen")
    return 0 if rows is None else rows.num_rows


def described(spark: SparkSession, lake: Lake) -> dict[str, str | None]:
    rows = spark.sql(f"DESCRIBE EXTENDED delta.`{lake.storage.spark_uri(KEY)}`").collect()
    return {row["col_name"]: row["comment"] or row["data_type"] for row in rows}


def test_describe_shows_the_texts_of_table_and_columns(spark: SparkSession, tmp_path: Path) -> None:
    lake = local_lake(tmp_path)
    append(lake, 1)

    shown = described(spark, lake)
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{lake.storage.spark_uri(KEY)}`").collect()[0]

    assert (shown["id"], shown["amount"]) == ("Id", "Price in cents")
    assert detail["description"] == "Orders of it's shop"


def test_a_streaming_query_and_a_merge_go_on_after_a_text_changed(spark: SparkSession, tmp_path: Path) -> None:
    lake = local_lake(tmp_path)
    append(lake, 1)
    uri = lake.storage.spark_uri(KEY)
    rows = spark.readStream.format("delta").load(uri)
    sink = rows.writeStream.format("delta").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = sink.start(lake.storage.spark_uri("seen"))
    try:
        query.processAllAvailable()
        assert count(lake) == 1
        table = ensure_described(lake, KEY, SCHEMA, SECOND, user_metadata="{}")
        assert table.version() == 2
        more = pa.table({"id": ["2"], "amount": [2]}, schema=SCHEMA)
        lake.append(table, KEY, more, step=Step("rows", 2), user_metadata="{}")
        query.processAllAvailable()
        assert count(lake) == 2
        assert query.exception() is None
    finally:
        query.stop()
    spark.sql(f"MERGE INTO delta.`{uri}` t USING (SELECT '2' AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE")
    assert described(spark, lake)["amount"] == "Price in euro cents"
    assert present(lake.open(KEY)).metadata().description == "All orders"
