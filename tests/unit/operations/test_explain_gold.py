"""`gold explain` says how each gold table is refreshed, why not with less work, and what computed its builds."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.control.provenance import user_metadata
from deltaworks.control.summaries.jobs import GoldVerification
from deltaworks.errors import ConfigError
from deltaworks.gold.table_commit import ENGINE, PARTIAL_SUMS, SPARK
from deltaworks.operations.gold import explain_gold
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from deltaworks.testing import append_rows
from tests.unit.maintenance.table_data import DAILY, DAILY_SQL, ORDERS, SHOP, project

LOWERED = "  - {name: lowered, sql: gold/lowered.sql, reads: [orders], partition_by: event_date}\n"
BY_LOWERED = "SELECT event_date,\n  lower(event_id) AS id, count(*) AS n\nFROM orders GROUP BY 1, 2"
LOWERED_SQL = {"gold/lowered.sql": BY_LOWERED}


@pytest.fixture
def shop(tmp_path: Path) -> Catalog:
    tables = DAILY.replace("tables: [", "tables:\n  - ").replace("}]", "}")
    return project(tmp_path, shop=SHOP + ORDERS + tables + LOWERED, sql=DAILY_SQL | LOWERED_SQL)


def build(catalog: Catalog, engine: str, number: int) -> None:
    metadata = user_metadata(pipeline="shop", batch="", operation="rebuild_gold", **{ENGINE: engine})
    lake, key = Lake(catalog.environment.lake), paths.table("shop", "daily")
    append_rows(lake, key, [{"n": number}], number=number, user_metadata=metadata)


def test_each_class_has_the_reason_and_the_line_for_more_work(shop: Catalog) -> None:
    explained = explain_gold(shop, "shop")

    assert (explained["daily"].refresh_class, explained["daily"].reason) == ("linear", "")
    assert explained["lowered"].refresh_class == "partition"
    assert explained["lowered"].reason.endswith("line 2, LOWER(event_id)")


def test_builds_are_counted_by_what_computed_them(shop: Catalog) -> None:
    for number, engine in enumerate((SPARK, PARTIAL_SUMS, PARTIAL_SUMS), 1):
        build(shop, engine, number)

    (explained,) = explain_gold(shop, "shop", tables=["daily"]).values()

    assert explained.engines == {PARTIAL_SUMS: 2, SPARK: 1}
    assert (explained.last_engine, explained.last_at is None) == (PARTIAL_SUMS, False)


def test_a_table_that_was_never_built_has_no_engine(shop: Catalog) -> None:
    (explained,) = explain_gold(shop, "shop", tables=["daily"]).values()

    assert (explained.engines, explained.last_engine, explained.last_at) == ({}, "", None)


def test_an_unknown_table_is_refused(shop: Catalog) -> None:
    with pytest.raises(ConfigError, match="has no gold table dayly"):
        explain_gold(shop, "shop", tables=["dayly"])


def test_the_last_comparison_with_the_sql_is_explained(shop: Catalog) -> None:
    key, objects = paths.gold_verification("shop", "daily"), Lake(shop.environment.lake).objects
    held = GoldVerification(pipeline="shop", table="daily", at="2026-01-02T00:00:00+00:00", partitions=("2026-01-01",))

    def explained(**changes: object) -> tuple[str, dt.datetime | None]:
        objects.put(key, held.replace(**changes).encode())
        (one,) = explain_gold(shop, "shop", tables=["daily"]).values()
        return one.verified, one.verified_at

    assert explained() == ("1 partitions equal their SQL", None)
    assert explained(partitions=(), reason="it was restored") == ("not compared: it was restored", None)
    verified = {"2026-01-01": "2026-01-02T00:00:00+00:00"}
    differing, at = explained(differing={"2026-01-01": 2}, verified_at=verified)
    assert (differing, at) == ("2 rows differ in 2026-01-01", dt.datetime(2026, 1, 2, tzinfo=dt.UTC))
