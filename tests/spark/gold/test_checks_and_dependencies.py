"""Gold tables that read gold tables, and checks before publishing."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from deltaworks.errors import ConfigError, ContractError
from deltaworks.gold import table_build
from deltaworks.gold.build import rebuild_gold
from deltaworks.tables.lake import Lake
from deltaworks.testing import present
from tests.spark.gold.shop_data import SHOP, event

# `weekly` is declared before its input.
GOLD = """\
gold:
  tables:
    - {name: busiest, sql: gold/busiest.sql, reads: [daily], partition_by: day}
    - name: daily
      sql: gold/daily.sql
      reads: [events]
      partition_by: day
      checks: {min_rows: 1, unique: [day, device_id], not_null: device_id, max_drop: 0.5}
    - {name: others, sql: gold/others.sql, reads: [events], partition_by: event_date}
"""
SQL = {
    "gold/daily.sql": "SELECT event_date AS day, device_id, count(*) AS events FROM events GROUP BY ALL",
    "gold/busiest.sql": "SELECT day, max(events) AS most FROM daily GROUP BY day",
    "gold/others.sql": "SELECT event_date, count(*) AS n FROM events GROUP BY ALL",
}


def test_tables_are_built_in_order_and_published_only_if_checks_pass(
    spark: SparkSession, make_project: Callable[..., Any]
) -> None:
    shop = make_project({"shop": (SHOP + GOLD, SQL)})
    shop.append("shop", "events", [event(day, f"{day}-{n}") for day in range(3) for n in range(day + 1)])

    first = rebuild_gold(spark, shop.catalog, "shop")
    assert [result.table for result in first.tables].index("daily") < [r.table for r in first.tables].index("busiest")
    assert {row["most"] for row in shop.rows("shop", "busiest")} == {1, 2, 3}

    again = rebuild_gold(spark, shop.catalog, "shop")
    assert [result.skipped for result in again.tables] == [True] * 3
    objects = open_objects(shop.catalog.environment.lake)
    fresh = present(objects.get(paths.gold_state("shop", "busiest")))
    assert "at" in json.loads(fresh.data)

    shop.append("shop", "events", [event(1, "1-late", "d1"), event(1, "1-other", "d2")])
    later = rebuild_gold(spark, shop.catalog, "shop")
    assert later.table("daily").partitions == ("2025-03-02",)
    assert later.table("busiest").partitions == ("2025-03-02",), "only what its input changed"
    assert sorted(row["most"] for row in shop.rows("shop", "busiest")) == [1, 3, 3]

    before = {name: shop.rows("shop", name) for name in ("daily", "busiest")}
    shop.append("shop", "events", [event(2, "2-bad", None), event(2, "2-good")])
    with pytest.raises(ContractError) as refused:
        rebuild_gold(spark, shop.catalog, "shop")
    assert refused.value.condition == "GOLD_CHECK_FAILED"
    assert not refused.value.retryable
    assert "daily: 1 rows without device_id" in refused.value.message
    assert {name: shop.rows("shop", name) for name in before} == before, "nothing of it is published"
    assert {row["n"] for row in shop.rows("shop", "others")} >= {5}, "the other table is"


def test_a_backfill_of_a_date_without_events_publishes_nothing(
    spark: SparkSession, make_project: Callable[..., Any]
) -> None:
    shop = make_project({"shop": (SHOP + GOLD, SQL)})
    shop.append("shop", "events", [event(0, "a"), event(2, "c")])
    rebuild_gold(spark, shop.catalog, "shop")
    before = shop.rows("shop", "daily")
    first, empty = dt.date(2025, 3, 1), dt.date(2025, 3, 2)

    for dates in ({empty}, {first, empty}):
        result = rebuild_gold(spark, shop.catalog, "shop", dates=frozenset(dates))
        assert all(table.checks_passed for table in result.tables)

    assert sorted(map(str, shop.rows("shop", "daily"))) == sorted(map(str, before))


def test_a_backfill_that_would_empty_a_published_date_fails(
    spark: SparkSession, make_project: Callable[..., Any]
) -> None:
    shop = make_project({"shop": (SHOP + GOLD, SQL)})
    shop.append("shop", "events", [event(0, "a"), event(2, "c")])
    rebuild_gold(spark, shop.catalog, "shop")
    events = present(Lake(shop.catalog.environment.lake).open(paths.table("shop", "events")))
    events.delete()

    with pytest.raises(ContractError, match="0 rows where at least 1 are expected"):
        rebuild_gold(spark, shop.catalog, "shop", dates=frozenset({dt.date(2025, 3, 1)}))


def test_without_checks_invalid_answers_are_published(
    spark: SparkSession, make_project: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_build, "failed_checks", lambda *_, **__: [])
    shop = make_project({"shop": (SHOP + GOLD, SQL)})
    shop.append("shop", "events", [event(0, "a", None)])

    rebuild_gold(spark, shop.catalog, "shop")

    assert [row["device_id"] for row in shop.rows("shop", "daily")] == [None]


def test_every_check_describes_its_failure(spark: SparkSession) -> None:
    from deltaworks.gold.answer import failed_checks
    from deltaworks.specs.gold import GoldTableSpec

    def table(**checks: Any) -> GoldTableSpec:
        declared = {"name": "daily", "sql": "x.sql", "reads": ["events"], "partition_by": "day", "checks": checks}
        return GoldTableSpec.model_validate(declared)

    answer = spark.createDataFrame([("a", 1), ("a", 1), ("b", None)], "day string, n int")
    before = spark.createDataFrame([("a", 1)] * 5 + [("b", 1), ("c", 1)], "day string, n int")

    assert failed_checks(table(min_rows=4), answer, None) == ["3 rows where at least 4 are expected"]
    assert failed_checks(table(not_null="n"), answer, None) == ["1 rows without n"]
    assert failed_checks(table(unique=["day", "n"]), answer, None) == [
        "1 values of (day, n) are duplicated, such as a, 1"
    ]
    assert failed_checks(table(max_drop=0.5), answer, before) == [
        "day a would fall from 5 rows to 2",
        "day c would fall from 1 rows to 0",
    ]
    assert failed_checks(table(max_drop=0.5), answer, None) == []
    with pytest.raises(ConfigError) as refused:
        failed_checks(table(unique="nothing"), answer, None)
    assert refused.value.condition == "GOLD_CHECK_INVALID"
