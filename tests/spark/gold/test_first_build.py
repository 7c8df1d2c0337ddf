"""First builds over small inputs equal Spark's; plain Parquet scans return the rows of one version."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.gold import table_commit
from deltaworks.gold.build import rebuild_gold
from deltaworks.gold.file_scan import MAX_FOLDERS, MAX_NAMED_FILES, FileScan, read_plain_files
from deltaworks.gold.parts import Part
from deltaworks.tables.log import read_commits
from tests.spark.gold.shop_data import SHOP, START, event

GOLD = """\
gold:
  tables:
    - {name: daily, sql: gold/daily.sql, reads: [events], partition_by: event_date}
    - {name: again, sql: gold/daily.sql, reads: [events], partition_by: event_date}
    - {name: kinds, sql: gold/kinds.sql, reads: [events], partition_by: kind, affects: all}
"""
SQL = {
    "gold/daily.sql": """
        SELECT event_date, device_id, count(*) AS events, cast(count(*) AS decimal(18, 2)) AS amount,
            max(event_time) AS last, collect_list(event_id) AS ids, named_struct('n', count(*), 'half', 0.5D) AS nested,
            map('device', device_id) AS named, true AS seen, cast(NULL AS int) AS nothing
        FROM events GROUP BY ALL
    """,
    "gold/kinds.sql": "SELECT if(device_id = 'd1', '', device_id) AS kind, count(*) AS events FROM events GROUP BY ALL",
}
DEFAULT = "spark.databricks.delta.properties.defaults.enableChangeDataFeed"


@pytest.fixture
def shop(make_project: Callable[..., Any]) -> Any:
    made = make_project({"shop": (SHOP + GOLD, SQL)})
    made.append("shop", "events", [event(0, "a"), event(0, "b"), event(1, "c", "d2"), event(3, "d", None)])
    return made


def first_commit(shop: Any, table: str) -> dict[str, Any]:
    ((_, actions),) = read_commits(shop.lake, paths.table("shop", table), [0])
    return {name: action for entry in actions or () for name, action in entry.items()}


def rows(spark: SparkSession, shop: Any, table: str) -> list[str]:
    uri = shop.lake.storage.spark_uri(paths.table("shop", table))
    return sorted(map(repr, spark.read.format("delta").load(uri).collect()))


def test_the_first_build_equals_a_table_created_by_spark(
    spark: SparkSession, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = rebuild_gold(spark, shop.catalog, "shop", tables=["daily", "kinds"])
    monkeypatch.setattr(table_commit, "MAX_COLLECTED_ROWS", -1)
    rebuild_gold(spark, shop.catalog, "shop", tables=["again"])

    ours, other = first_commit(shop, "daily"), first_commit(shop, "again")
    assert (ours["commitInfo"]["engineInfo"], other["commitInfo"]["engineInfo"][:12]) == ("deltaworks", "Apache-Spark")
    assert ours["protocol"] == other["protocol"]
    for name in ("schemaString", "partitionColumns", "configuration", "format"):
        assert ours["metaData"][name] == other["metaData"][name], name
    assert rows(spark, shop, "daily") == rows(spark, shop, "again")
    assert (result.table("daily").rows, result.table("daily").version) == (3, 0)
    assert len(rows(spark, shop, "kinds")) == 3, "an empty text and none are one partition of two rows"


def test_later_builds_continue_from_the_first(spark: SparkSession, shop: Any) -> None:
    rebuild_gold(spark, shop.catalog, "shop")
    shop.append("shop", "events", [event(3, "e", "d3")])

    result = rebuild_gold(spark, shop.catalog, "shop", tables=["daily"]).table("daily")

    assert result.partitions == ("2025-03-04",)
    incremental = rows(spark, shop, "daily")
    rebuild_gold(spark, shop.catalog, "shop", tables=["daily"], full=True)
    assert rows(spark, shop, "daily") == incremental


def test_large_inputs_and_default_table_properties_are_left_to_spark(
    spark: SparkSession, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.conf.set(DEFAULT, "true")
    try:
        rebuild_gold(spark, shop.catalog, "shop", tables=["daily"])
    finally:
        spark.conf.unset(DEFAULT)
    monkeypatch.setattr(table_commit, "MAX_COLLECTED_ROWS", 3)
    rebuild_gold(spark, shop.catalog, "shop", tables=["again"])

    assert first_commit(shop, "daily")["metaData"]["configuration"]["delta.enableChangeDataFeed"] == "true"
    assert first_commit(shop, "again")["commitInfo"]["engineInfo"].startswith("Apache-Spark")


KEY = paths.table("shop", "events")
DAY = START.date()


@pytest.fixture
def many_files(make_project: Callable[..., Any]) -> Any:
    """A table with more files than are passed by path."""
    made = make_project({"shop": (SHOP, {})})
    for number in range(MAX_NAMED_FILES + 2):
        made.append("shop", "events", [event(0, f"a{number}"), event(1, f"b{number}")])
    return made


def scanned(spark: SparkSession, many_files: Any, part: Part, *, version: int | None = None) -> list[str] | None:
    """Returns the ids of the rows of a part, if read as plain files."""
    opened = many_files.lake.open(KEY)
    if version is not None:
        opened.load_as_version(version)
    rows = read_plain_files(
        spark, many_files.lake, opened, FileScan(KEY, opened.version(), part, "event_date", "event_time")
    )
    return None if rows is None else sorted(row["event_id"] for row in rows.collect())


def of_dates(*dates: dt.date) -> Part:
    return Part("event_date", frozenset(dates))


def folder(many_files: Any) -> Path:
    return Path(many_files.lake.storage.prefix) / KEY / f"event_date={DAY}"


def test_only_files_of_the_version_are_read(spark: SparkSession, many_files: Any) -> None:
    first_day = sorted(f"a{number}" for number in range(MAX_NAMED_FILES + 2))
    before = many_files.lake.open(KEY).version()
    assert scanned(spark, many_files, of_dates(DAY)) == first_day
    shutil.copy(
        next(folder(many_files).glob("*.parquet")), folder(many_files) / "part-of-a-batch-that-is-not-committed.parquet"
    )
    assert scanned(spark, many_files, of_dates(DAY)) == first_day
    many_files.append("shop", "events", [event(0, "new")])
    assert scanned(spark, many_files, of_dates(DAY)) == sorted([*first_day, "new"])
    assert scanned(spark, many_files, of_dates(DAY), version=before) == first_day
    many_files.lake.open(KEY).optimize.compact()
    assert scanned(spark, many_files, of_dates(DAY)) == sorted([*first_day, "new"]), "one file of twelve"
    assert len(scanned(spark, many_files, Part("event_date", None)) or ()) == 2 * len(first_day) + 1


def test_columns_added_later_are_null_in_old_files(spark: SparkSession, many_files: Any) -> None:
    opened = many_files.lake.open(KEY)
    rows = read_plain_files(
        spark, many_files.lake, opened, FileScan(KEY, opened.version(), of_dates(DAY), "event_date")
    )
    assert rows is not None
    expected = spark.read.format("delta").load(many_files.lake.storage.spark_uri(KEY))
    assert rows.columns == expected.columns
    assert sorted(map(str, rows.collect())) == sorted(map(str, expected.filter(f"event_date = '{DAY}'").collect()))


def test_tables_with_reader_features_use_the_delta_reader(spark: SparkSession, many_files: Any) -> None:
    next(folder(many_files).glob("*.parquet")).unlink()
    assert scanned(spark, many_files, of_dates(DAY)) is None, (
        "a listing lacks a file, which would be rows that are missing"
    )
    assert scanned(spark, many_files, of_dates(DAY + dt.timedelta(days=1))) is not None

    for day in range(2, MAX_FOLDERS + 2):
        many_files.append("shop", "events", [event(day, f"c{day}")])
    assert scanned(spark, many_files, Part("event_date", None)) is None, "too many folders"
    uri = many_files.lake.storage.spark_uri(KEY)
    spark.sql(f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    assert scanned(spark, many_files, of_dates(DAY + dt.timedelta(days=1))) is None, "rows may be marked as deleted"
