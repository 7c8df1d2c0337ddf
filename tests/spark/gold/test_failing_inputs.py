"""A damaged input holds the gold tables that read it, and their readers; the others are built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.errors import DeltaworksError
from deltaworks.gold.build import rebuild_gold
from deltaworks.gold.refresh import refresh_gold
from deltaworks.gold.table_build import GoldTableResult, TableJob
from deltaworks.specs.gold import GoldTableSpec
from tests.spark.gold.shop_data import SHOP, event

TWO_TABLES = SHOP.replace(
    "tables:\n",
    "tables:\n  - {name: purchases, when: {name: buy}, columns: [{name: device_id, path: device, type: string}]}\n",
)
GOLD = """\
gold:
  dedupe: {by: event_id}
  tables:
    - {name: payers, sql: gold/payers.sql, reads: [purchases], partition_by: event_date}
    - {name: best_payers, sql: gold/best.sql, reads: [payers], partition_by: event_date}
    - {name: funnel, sql: gold/funnel.sql, reads: [events, purchases], partition_by: event_date}
    - {name: visitors, sql: gold/visitors.sql, reads: [events], partition_by: event_date}
    - {name: best_visitors, sql: gold/best_visitors.sql, reads: [visitors], partition_by: event_date}
"""
SQL = {
    "gold/payers.sql": "SELECT event_date, count(*) AS n FROM purchases GROUP BY ALL",
    "gold/best.sql": "SELECT event_date, max(n) AS n FROM payers GROUP BY ALL",
    "gold/funnel.sql": "SELECT event_date, count(*) AS n FROM events JOIN purchases USING (event_date) GROUP BY ALL",
    "gold/visitors.sql": "SELECT event_date, count(*) AS n FROM events GROUP BY ALL",
    "gold/best_visitors.sql": "SELECT event_date, max(n) AS n FROM visitors GROUP BY ALL",
}
BUILT, FAILED, HELD = {"visitors", "best_visitors"}, {"payers", "funnel"}, {"best_payers"}


def remove(file: Path) -> None:
    file.unlink()


def overwrite(file: Path) -> None:
    file.write_bytes(b"\1" * file.stat().st_size)


def damage_log(file: Path) -> None:
    log = file.parent.parent / "_delta_log" if "=" in file.parent.name else file.parent / "_delta_log"
    for commit in log.glob("*.json"):
        commit.write_text("{torn")


DAMAGE = {"missing": remove, "unreadable": overwrite}


class Recorder:
    """A listener that records outcomes, as the loop of a stream does."""

    def __init__(self) -> None:
        self.built: set[str] = set()
        self.failed: dict[str, Exception] = {}

    def skip_reason(self, job: TableJob) -> str:
        return ""

    def on_built(self, job: TableJob, result: GoldTableResult) -> None:
        self.built.add(result.table)

    def on_failed(self, table: GoldTableSpec, error: Exception) -> None:
        self.failed[table.name] = error


@pytest.fixture
def shop(make_project: Callable[..., Any]) -> Any:
    project = make_project({"shop": (TWO_TABLES + GOLD, SQL)})
    for name in ("events", "purchases"):
        project.append("shop", name, [event(day, f"{name}-{day}") for day in range(2)])
    return project


def damaged_file(shop: Any) -> Path:
    folder = Path(shop.catalog.environment.lake.prefix, paths.table("shop", "purchases"))
    return min(folder.rglob("*.parquet"))


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_holds_its_readers_only(spark: SparkSession, shop: Any, damage: str) -> None:
    file = damaged_file(shop)
    DAMAGE[damage](file)

    with pytest.raises(DeltaworksError) as raised:
        rebuild_gold(spark, shop.catalog, "shop")

    assert (raised.value.condition, raised.value.retryable) == ("GOLD_TABLES_FAILED", False)
    condition = f"DATA_FILE_{damage.upper()}"
    assert raised.value.message.count(f"[{condition}]") == len(FAILED), raised.value.message
    assert raised.value.message.startswith("2 of 5 tables failed: ")
    assert all(f"{name}: shop.purchases: data file" in raised.value.message for name in FAILED)
    assert file.name in raised.value.message
    assert "deltaworks recover files shop purchases" in raised.value.hint
    assert {name for name in (*BUILT, *FAILED, *HELD) if shop.lake.open(paths.table("shop", name))} == BUILT

    listener = Recorder()
    rebuild_gold(spark, shop.catalog, "shop", full=True, listener=listener)
    assert (listener.built, set(listener.failed)) == (BUILT, FAILED)


def test_a_torn_log_holds_its_readers_only(spark: SparkSession, shop: Any) -> None:
    rebuild_gold(spark, shop.catalog, "shop")
    damage_log(damaged_file(shop))
    shop.append("shop", "events", [event(1, "late")])

    with pytest.raises(DeltaworksError):
        rebuild_gold(spark, shop.catalog, "shop")

    assert sorted(row["n"] for row in shop.rows("shop", "visitors")) == [1, 2]
    assert sorted(row["n"] for row in shop.rows("shop", "best_visitors")) == [1, 2]
    listener = Recorder()
    rebuild_gold(spark, shop.catalog, "shop", listener=listener)
    assert (listener.built, set(listener.failed)) == (BUILT, FAILED)


def test_a_refresh_goes_on_with_the_tables_that_do_not_read_it(spark: SparkSession, shop: Any) -> None:
    rebuild_gold(spark, shop.catalog, "shop")
    remove(damaged_file(shop))

    with pytest.raises(DeltaworksError) as raised:
        refresh_gold(spark, shop.catalog, "shop", dry_run=False)

    assert "shop.purchases: data file" in raised.value.message
    assert {name for name in BUILT if shop.lake.open(paths.table("shop", name)).version() > 0} == BUILT
    assert all(shop.lake.open(paths.table("shop", name)).version() == 0 for name in (*FAILED, *HELD))
