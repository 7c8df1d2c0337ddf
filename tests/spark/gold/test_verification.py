"""Spark computes gold again over the same inputs, without the shortcuts of builds, and finds rows that differ."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.alerts.raising import open_subjects
from deltaworks.control.summaries.jobs import read_gold_verification
from deltaworks.gold import input_views, verification
from deltaworks.gold.build import rebuild_gold
from deltaworks.gold.verification import VerificationLimits, compare_with_spark, verify_gold
from deltaworks.testing import present
from tests.spark.gold.shop_data import SHOP, event

GOLD = """\
gold:
  dedupe: {by: event_id, within_days: 1, within_hours: 1}
  tables:
    - {name: daily, sql: gold/daily.sql, reads: [events], partition_by: event_date}
    - name: minutes
      sql: gold/minutes.sql
      reads: [events]
      partition_by: event_date
      grain: {column: minute, part: hour}
    - {name: total, sql: gold/total.sql, reads: [daily], partition_by: year, affects: all}
"""
SQL = {
    "daily": "SELECT event_date, count(*) AS events, avg(_seq) * 1.0D AS mean FROM events GROUP BY event_date",
    "minutes": "SELECT event_date, date_trunc('minute', event_time) AS minute, count(*) AS n FROM events GROUP BY 1, 2",
    "total": "SELECT 2025 AS year, sum(events) AS events FROM daily",
}
Verify = Callable[..., Mapping[str, Any]]


@pytest.fixture
def shop(make_project: Callable[..., Any]) -> Any:
    made = make_project({"shop": (SHOP + GOLD, {f"gold/{name}.sql": sql for name, sql in SQL.items()})})
    made.append("shop", "events", [event(0, "a"), event(0, "b"), event(1, "b"), event(1, "c"), event(2, None)])
    return made


@pytest.fixture
def verify(spark: SparkSession, shop: Any) -> Verify:
    compare = functools.partial(compare_with_spark, spark, shop.lake, shop.catalog.pipeline("shop"))
    limits = VerificationLimits(partitions=10, bytes=1 << 30)

    def run(*tables: str) -> Mapping[str, Any]:
        results = verify_gold(shop.catalog, "shop", limits=limits, compare=compare, tables=tables)
        return {result.table: result for result in results}

    return run


def test_spark_finds_duplicates_that_builds_overlooked(
    spark: SparkSession, shop: Any, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = input_views.find_duplicates_in_driver

    def overlook(*arguments: Any, **options: Any) -> Any:
        rows, counts = present(find(*arguments, **options))
        return rows[:0], dict.fromkeys(counts, 0)

    with monkeypatch.context() as wrong:
        wrong.setattr(input_views, "find_duplicates_in_driver", overlook)
        rebuild_gold(spark, shop.catalog, "shop", tables=["daily"])
        wrong.setattr(verification, "InputViews", _with_shortcuts)
        by_the_same_shortcuts = verify("daily")["daily"]
    assert by_the_same_shortcuts.differing_rows == 0

    assert verify("daily")["daily"].differing == {"2025-03-02": 2}
    assert open_subjects(shop.lake.objects, "GOLD_DIFFERS") == {"shop.daily"}


def _with_shortcuts(*arguments: Any, is_independent: bool) -> input_views.InputViews:
    return input_views.InputViews(*arguments)


def test_what_waits_for_a_build_is_not_compared(spark: SparkSession, shop: Any, verify: Verify) -> None:
    rebuild_gold(spark, shop.catalog, "shop")
    shop.append("shop", "events", [event(2, "late")])

    results = verify()

    assert (set(results["daily"].partitions), results["daily"].differing_rows) == ({"2025-03-01", "2025-03-02"}, 0)
    assert (results["total"].partitions, results["total"].differing_rows) == (("all rows",), 0)
    assert present(read_gold_verification(shop.lake.objects, "shop", "minutes")).newest_at is not None
