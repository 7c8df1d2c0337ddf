"""Plain Parquet scans return the rows of one version, or fall back to Delta."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.gold.file_scan import MAX_FOLDERS, MAX_NAMED_FILES, FileScan, read_plain_files
from deltaworks.gold.parts import Part
from tests.spark.gold.shop_data import SHOP, START, event

KEY = paths.table("shop", "events")
DAY = START.date()


@pytest.fixture
def shop(make_project: Callable[..., Any]) -> Any:
    """A table with more files than are passed by path."""
    made = make_project({"shop": (SHOP, {})})
    for number in range(MAX_NAMED_FILES + 2):
        made.append("shop", "events", [event(0, f"a{number}"), event(1, f"b{number}")])
    return made


def scanned(spark: SparkSession, shop: Any, part: Part, *, version: int | None = None) -> list[str] | None:
    """Returns the ids of the rows of a part, if read as plain files."""
    opened = shop.lake.open(KEY)
    if version is not None:
        opened.load_as_version(version)
    rows = read_plain_files(spark, shop.lake, opened, FileScan(KEY, opened.version(), part, "event_date", "event_time"))
    return None if rows is None else sorted(row["event_id"] for row in rows.collect())


def of_dates(*dates: dt.date) -> Part:
    return Part("event_date", frozenset(dates))


def folder(shop: Any) -> Path:
    return Path(shop.lake.storage.prefix) / KEY / f"event_date={DAY}"


def test_only_files_of_the_version_are_read(spark: SparkSession, shop: Any) -> None:
    first_day = sorted(f"a{number}" for number in range(MAX_NAMED_FILES + 2))
    before = shop.lake.open(KEY).version()
    assert scanned(spark, shop, of_dates(DAY)) == first_day
    shutil.copy(next(folder(shop).glob("*.parquet")), folder(shop) / "part-of-a-batch-that-is-not-committed.parquet")
    assert scanned(spark, shop, of_dates(DAY)) == first_day
    shop.append("shop", "events", [event(0, "new")])
    assert scanned(spark, shop, of_dates(DAY)) == sorted([*first_day, "new"])
    assert scanned(spark, shop, of_dates(DAY), version=before) == first_day
    shop.lake.open(KEY).optimize.compact()
    assert scanned(spark, shop, of_dates(DAY)) == sorted([*first_day, "new"]), "one file of twelve"
    assert len(scanned(spark, shop, Part("event_date", None)) or ()) == 2 * len(first_day) + 1


def test_columns_added_later_are_null_in_old_files(spark: SparkSession, shop: Any) -> None:
    opened = shop.lake.open(KEY)
    rows = read_plain_files(spark, shop.lake, opened, FileScan(KEY, opened.version(), of_dates(DAY), "event_date"))
    assert rows is not None
    expected = spark.read.format("delta").load(shop.lake.storage.spark_uri(KEY))
    assert rows.columns == expected.columns
    assert sorted(map(str, rows.collect())) == sorted(map(str, expected.filter(f"event_date = '{DAY}'").collect()))


def test_tables_with_reader_features_use_the_delta_reader(spark: SparkSession, shop: Any) -> None:
    next(folder(shop).glob("*.parquet")).unlink()
    assert scanned(spark, shop, of_dates(DAY)) is None, "a listing lacks a file, which would be rows that are missing"
    assert scanned(spark, shop, of_dates(DAY + dt.timedelta(days=1))) is not None

    for day in range(2, MAX_FOLDERS + 2):
        shop.append("shop", "events", [event(day, f"c{day}")])
    assert scanned(spark, shop, Part("event_date", None)) is None, "too many folders"
    uri = shop.lake.storage.spark_uri(KEY)
    spark.sql(f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    assert scanned(spark, shop, of_dates(DAY + dt.timedelta(days=1))) is None, "rows may be marked as deleted"
