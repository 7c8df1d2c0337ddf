"""Readers skip the same files of a table written by the fan-out as of one written by Spark."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyarrow import fs
from pyspark.sql import SparkSession

from deltaworks.control.provenance import user_metadata
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step, commit_step
from deltaworks.tables.files import split_by_partition, write_file
from deltaworks.tables.lake import Lake
from deltaworks.tables.statistics import IndexedColumns
from deltaworks.testing import present

UTC = dt.UTC
FILES = 6
ROWS = 4
COLUMNS = {
    "number": "long",
    "small": "int",
    "amount": "decimal(38,10)",
    "ratio": "double",
    "single": "float",
    "at": "timestamp",
    "day": "date",
    "text": "string",
    "long_text": "string",
    "yes": "boolean",
    "raw": "binary",
    "some_null": "long",
    "no_value": "string",
    "tags": "array<string>",
    "counts": "map<string,long>",
    "items": "array<struct<sku: string, price: decimal(9,4)>>",
    "device": "struct<os: string, screen: struct<width: int, ratio: double>, seen: timestamp>",
}
LARGEST = "\U0010ffff"


def row(file: int, position: int) -> dict[str, Any]:
    """Values that grow with the file, at the limits of the statistics."""
    at = dt.datetime(2024, 1, 1 + file, 1, 1, 1, 123_456 + position, tzinfo=UTC)
    number = file * 1_000 + position
    device = {"os": f"os{file}", "screen": {"width": number, "ratio": number / 3}, "seen": at}
    return {
        "number": number,
        "small": -number,
        "amount": decimal.Decimal(10**27 * file + position) + decimal.Decimal("0.1234567891"),
        "ratio": number / 7,
        "single": float(number) + 0.25,
        "at": at,
        "day": at.date(),
        "text": ["", "a", "ü", LARGEST][position] if file == 0 else f"t{file}",
        "long_text": "x" * 31 + chr(ord("a") + file) + "y" * 10 + LARGEST * position,
        "yes": file % 2 == 0,
        "raw": bytes([file]),
        "some_null": None if position == 0 else number,
        "no_value": None,
        "tags": [f"g{file}", None],
        "counts": [("k", number)],
        "items": [{"sku": "s", "price": decimal.Decimal("1.2345")}],
        "device": None if position == 3 else device,
    }


def data_of(file: int) -> pa.Table:
    return pa.Table.from_pylist([row(file, position) for position in range(ROWS)], schema=arrow_schema(COLUMNS))


CONDITIONS = [
    "number = 3002",
    "number > 4999",
    "number BETWEEN 1000 AND 2001",
    "small < -4000",
    f"amount = {row(2, 1)['amount']}BD",
    f"amount > {row(4, 3)['amount']}BD",
    "ratio >= 700D",
    "single = CAST(2001.25 AS FLOAT)",
    "at = TIMESTAMP '2024-01-03 01:01:01.123457Z'",
    "at > TIMESTAMP '2024-01-05 01:01:01.123459Z'",
    "at < TIMESTAMP '2024-01-01 01:01:01.123457Z'",
    "day = DATE '2024-01-04'",
    "text = 't3'",
    f"text = '{LARGEST}'",
    "text = ''",
    "long_text > 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxe'",
    f"long_text = '{row(2, 3)['long_text']}'",
    "yes = true",
    "some_null IS NULL",
    "no_value IS NOT NULL",
    "no_value IS NULL",
    "tags IS NULL",
    "device.os = 'os2'",
    "device.screen.width = 5001",
    "device.screen.ratio < 1",
    "device.seen >= TIMESTAMP '2024-01-06 00:00:00Z'",
    "device.os IS NULL",
    "number = 1001 AND text = 't1'",
]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(StorageSpec(root=f"file://{tmp_path_factory.mktemp('lake')}"))


@pytest.fixture(scope="module")
def tables(spark: SparkSession, lake: Lake) -> tuple[str, str]:
    """The same rows per file in two tables: one written by the fan-out, one by Spark."""
    made = user_metadata(pipeline="p", batch=1, operation="append")
    ours = lake.ensure("ours", arrow_schema(COLUMNS), user_metadata=made)
    theirs = lake.storage.spark_uri("theirs")
    for file in range(FILES):
        written = write_file(fs.LocalFileSystem(), f"{lake.storage.prefix}/ours", data_of(file), partition={})
        commit_step(ours, [written.add_action()], step=Step("s", file + 1), user_metadata=made)
        spark.createDataFrame(data_of(file)).coalesce(1).write.format("delta").mode("append").save(theirs)
    return lake.storage.spark_uri("ours"), theirs


def read(spark: SparkSession, uri: str, condition: str) -> tuple[int, set[int]]:
    """Returns the number of files in Spark's plan, and the rows."""
    frame = spark.read.format("delta").load(uri).where(condition)
    return len(frame.inputFiles()), {found["number"] for found in frame.select("number").collect()}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_spark_skips_these_files_like_its_own_and_returns_the_same_rows(
    spark: SparkSession, tables: tuple[str, str], condition: str
) -> None:
    ours, theirs = (read(spark, uri, condition) for uri in tables)

    assert ours == theirs


def test_every_condition_skips_files(spark: SparkSession, tables: tuple[str, str]) -> None:
    rows = spark.read.format("delta").load(tables[0])
    left = [len(rows.where(condition).inputFiles()) for condition in CONDITIONS]

    assert sum(count <= 2 for count in left) > len(CONDITIONS) // 2


@pytest.mark.parametrize(
    "condition",
    [
        ds.field("number") == 3002,
        ds.field("number") > 4999,
        ds.field("day") == dt.date(2024, 1, 4),
        ds.field("text") == "t3",
        ds.field("at") == dt.datetime(2024, 1, 3, 1, 1, 1, 123_457, tzinfo=UTC),
        ds.field("ratio") >= 700.0,
        ds.field("long_text") > "x" * 31 + "e",
        ds.field("no_value").is_valid(),
    ],
    ids=str,
)
def test_deltalake_and_so_duckdb_skip_no_fewer_files_of_ours(
    lake: Lake, tables: tuple[str, str], condition: ds.Expression
) -> None:
    def left(key: str) -> tuple[int, set[int]]:
        dataset = present(lake.open(key)).to_pyarrow_dataset()
        found = dataset.to_table(columns=["number"], filter=condition)["number"].to_pylist()
        return sum(1 for _ in dataset.get_fragments(condition)), set(found)

    ours, theirs = left("ours"), left("theirs")

    assert ours[1] == theirs[1]
    assert ours[0] <= theirs[0]


@pytest.mark.parametrize("values", [["", "a"], [None, "", "b c/%=ü"], ["2024-01-01", "~", LARGEST]])
def test_spark_and_deltalake_agree_on_partition_values_with_a_table_spark_wrote(
    spark: SparkSession, lake: Lake, values: list[str | None]
) -> None:
    schema = arrow_schema({"name": "string", "number": "long"})
    data = pa.table({"name": values, "number": range(len(values))}, schema=schema)
    key = f"partitioned{abs(hash(tuple(values)))}"
    made = user_metadata(pipeline="p", batch=1, operation="append")
    ours = lake.ensure(key, schema, user_metadata=made, partition_by=["name"])
    parts = split_by_partition(data, ["name"])
    root = f"{lake.storage.prefix}/{key}"
    files = [write_file(fs.LocalFileSystem(), root, part, partition=each) for each, part in parts]
    commit_step(ours, [file.add_action() for file in files], step=Step("s", 1), user_metadata=made)
    theirs = lake.storage.spark_uri(f"{key}_spark")
    spark.createDataFrame(data).write.format("delta").partitionBy("name").save(theirs)

    def by_spark(uri: str) -> dict[int, Any]:
        return {found["number"]: found["name"] for found in spark.read.format("delta").load(uri).collect()}

    expected = by_spark(theirs)
    assert by_spark(lake.storage.spark_uri(key)) == expected
    rows = present(lake.rows(key))
    assert {found["number"]: found["name"] for found in rows.to_pylist()} == expected


def test_a_table_that_excludes_a_column_has_no_value_of_it_in_its_log(spark: SparkSession, lake: Lake) -> None:
    uri = lake.storage.spark_uri("excluding")
    spark.sql(
        f"CREATE TABLE delta.`{uri}` (secret STRING, number BIGINT) USING delta "
        "TBLPROPERTIES ('delta.dataSkippingStatsColumns' = 'number')"
    )
    table = present(lake.open("excluding"))
    data = pa.table({"secret": ["hunter2"], "number": [1]})
    indexed = IndexedColumns.of(table.metadata().configuration)
    written = write_file(fs.LocalFileSystem(), f"{lake.storage.prefix}/excluding", data, partition={}, indexed=indexed)

    assert "secret" not in written.stats
    assert '"number":1' in written.stats
