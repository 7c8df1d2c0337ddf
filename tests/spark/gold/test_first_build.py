"""First builds over small inputs create the same table as Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.gold import table_build
from deltaworks.gold.build import rebuild_gold
from deltaworks.tables.log import read_commits
from tests.spark.gold.shop_data import SHOP, event

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
    monkeypatch.setattr(table_build, "MAX_COLLECTED_ROWS", -1)
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
    monkeypatch.setattr(table_build, "MAX_COLLECTED_ROWS", 3)
    rebuild_gold(spark, shop.catalog, "shop", tables=["again"])

    assert first_commit(shop, "daily")["metaData"]["configuration"]["delta.enableChangeDataFeed"] == "true"
    assert first_commit(shop, "again")["commitInfo"]["engineInfo"].startswith("Apache-Spark")
