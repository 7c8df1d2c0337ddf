"""Gold of the games pipeline refreshed by its stream equals the DAG's build."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from deltaworks.gold import build as build_module
from deltaworks.gold.build import rebuild_gold
from deltaworks.gold.refresh_loop import GoldRefreshLoop
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.testing import declare_pipeline, declare_table
from tests.spark.gold.shop_data import START

FOLDER = PROJECT_ROOT / "include" / "pipelines" / "games"
GOLD = yaml.safe_load((FOLDER / "pipeline.yaml").read_text())["gold"]
REFRESHED = [table for table in GOLD["tables"] if "refresh_seconds" in table]
DECLARED = declare_pipeline(
    declare_table("events", *(f"{name} string" for name in ("device_id", "country"))),
    declare_table("purchase", "amount decimal(10,2)", when="purchase"),
    pipeline="games",
    event={"name": {"path": "name"}, "time": {"path": "time"}, "id": "id"},
    gold={"dedupe": GOLD["dedupe"], "tables": REFRESHED},
)


def sent(hours: float, event_id: str, device: str, country: str = "DE") -> dict[str, Any]:
    time = START + dt.timedelta(hours=hours)
    return {"event_id": event_id, "event_time": time, "device_id": device, "country": country}


def paid(hours: float, event_id: str, amount: str) -> dict[str, Any]:
    return {"event_id": event_id, "event_time": START + dt.timedelta(hours=hours), "amount": Decimal(amount)}


def contents(games: Any) -> dict[str, Counter[tuple[Any, ...]]]:
    return {
        table["name"]: Counter(tuple(row.values()) for row in games.rows("games", table["name"])) for table in REFRESHED
    }


@pytest.mark.integration
def test_a_refresh_round_builds_the_same_tables_as_the_dag(
    spark: SparkSession, make_project: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = {table["sql"]: (FOLDER / table["sql"]).read_text() for table in REFRESHED}
    games = make_project({"games": (yaml.safe_dump(DECLARED), sql)})
    reports: list[Any] = []
    looked_up: list[str] = []
    find = build_module.InputViews._find_in_driver
    monkeypatch.setattr(
        build_module.InputViews,
        "_find_in_driver",
        lambda views, name, *rest: looked_up.append(name) or find(views, name, *rest),  # type: ignore[func-returns-value]
    )
    loop = GoldRefreshLoop(
        spark, games.catalog, "games", pool="gold", holds_lease=lambda: True, report_failures=reports.append
    )

    def look() -> None:
        loop._next_refresh_at = dict.fromkeys(loop._next_refresh_at, 0.0)
        looked_up.clear()
        loop.refresh_due_tables(spark)

    games.append("games", "events", [sent(1, "e1", "d1"), sent(2, "e2", "d2", "FR"), sent(30, "e3", "d1")])
    games.append("games", "purchase", [paid(2, "e2", "3.50")])
    look()
    # A duplicate a day later, a late event of the first date, and a purchase whose envelope arrives after it.
    games.append("games", "purchase", [paid(26, "e2", "3.50"), paid(27, "e4", "1.25")])
    look()
    games.append("games", "events", [sent(26, "e2", "d2", "FR"), sent(27, "e4", "d3", "IT"), sent(1.5, "e5", "d3")])
    look()
    assert sorted(looked_up) == ["events", "purchase"], "once for all tables"

    by_stream = contents(games)
    assert sum(by_stream["bookings_per_country"].values()) == 2
    assert sum(row[-1] * count for row, count in by_stream["events_per_hour"].items()) == 5, "and no copy"
    rebuild_gold(spark, games.catalog, "games", full=True)
    assert contents(games) == by_stream
    assert reports == []
