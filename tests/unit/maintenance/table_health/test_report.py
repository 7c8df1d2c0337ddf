"""Reports, snapshots, summaries and trend charts cover every table, also damaged ones."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import LocalObjects
from deltaworks.control.paths import tables_summary
from deltaworks.control.summaries.base import read_summary
from deltaworks.control.summaries.tables import TablesSummary, TableSummary
from deltaworks.maintenance.table_health import report as table_report
from deltaworks.maintenance.table_health import summary as summaries
from deltaworks.maintenance.table_health.report import TableReport, report_table, report_tables
from deltaworks.maintenance.table_health.snapshots import (
    read_snapshots,
    small_file_share,
    snapshot_tables,
    trends,
    worst_tables,
    write_trend_chart,
)
from deltaworks.maintenance.table_health.summary import write_tables_summary
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from deltaworks.testing import present, write_files
from tests.unit.maintenance.table_data import append, make
from tests.unit.maintenance.table_health.health_harness import NOW, declared_shop, made_shop


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return declared_shop(tmp_path)


@pytest.fixture
def lake(catalog: Catalog) -> Lake:
    return made_shop(catalog)


def of(reports: list[TableReport], name: str) -> TableReport:
    return next(report for report in reports if report.name == name)


def test_a_report_has_costs_and_planned_maintenance(catalog: Catalog, lake: Lake) -> None:
    found = report_tables(catalog, now=NOW)
    orders, items = of(found, "orders"), of(found, "items")

    assert orders.score is not None
    assert orders.score.value < 90
    assert {part.name for part in orders.score.costly} == {"small_files"}, "an order would skip nothing"
    assert orders.choice is not None
    assert (len(orders.choice.partitions), orders.choice.files_saved) == (3, 15)
    assert "3 partitions to rewrite" in orders.choice.reason
    assert items.score is not None
    assert items.score.value == 100
    assert items.choice is not None
    assert items.choice.reason == "nothing to do: 2 partitions of one file"
    assert of(found, "none_yet").health is None
    assert of(found, "none_yet").error == ""


def test_a_large_unordered_table_costs_points(tmp_path: Path) -> None:
    catalog = declared_shop(tmp_path, "maintenance: {zorder_from_bytes: 0}\n")
    made_shop(catalog)

    orders = of(report_tables(catalog, now=NOW), "orders")

    assert orders.score is not None
    assert orders.score.value < 80
    assert {part.name for part in orders.score.costly} == {"order", "small_files"}
    assert orders.choice is not None
    assert orders.choice.order.startswith("would order 3 partitions, the largest ")


def broken(lake: Lake, name: str) -> None:
    first = Path(lake.storage.prefix, paths.table("shop", name), "_delta_log", f"{0:020d}.json")
    first.write_text("{")


def test_an_unreadable_table_is_reported_with_its_error(catalog: Catalog, lake: Lake) -> None:
    broken(lake, "items")

    found = report_tables(catalog, now=NOW, list_folders=True)

    assert of(found, "items").error
    assert of(found, "items").score is None
    assert of(found, "orders").score is not None


def test_an_unreadable_ledger_is_reported_and_tables_are_still_scored(catalog: Catalog, lake: Lake) -> None:
    key = paths.pipeline_control("shop", "zorder_ledger")
    write_files(Path(lake.storage.prefix, key), {f"_delta_log/{0:020d}.json": "{"})

    orders = of(report_tables(catalog, now=NOW), "orders")

    assert "the Z-order ledger of shop cannot be read" in orders.error
    assert orders.health is not None
    assert orders.score is not None
    assert orders.choice is None


def test_unreferenced_files_are_counted_when_folders_are_listed(catalog: Catalog, lake: Lake) -> None:
    lost = Path(lake.storage.prefix, paths.table("shop", "orders"), "lost.parquet")
    lost.write_bytes(b"x" * 100_000)
    os.utime(lost, (0, 0))

    without = report_table(catalog, "shop", "orders", now=NOW)
    found = report_table(catalog, "shop", "orders", list_folder=True, now=NOW)

    assert without is not None
    assert found is not None
    assert without.unreferenced is None
    assert found.unreferenced is not None
    assert (found.unreferenced.files, found.unreferenced.bytes) == (1, 100_000)
    assert found.score is not None
    assert without.score is not None
    assert found.score.value < without.score.value
    assert report_table(catalog, "shop", "nothing", now=NOW) is None


def test_an_unlistable_folder_only_lacks_the_count(
    catalog: Catalog, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError("listing is not allowed")

    monkeypatch.setattr(table_report, "count_unreferenced", refused)

    orders = of(report_tables(catalog, now=NOW, list_folders=True), "orders")

    assert "listing is not allowed" in orders.error
    assert orders.health is not None
    assert orders.score is not None


def test_snapshots_have_a_row_per_table_and_run(catalog: Catalog, lake: Lake) -> None:
    broken(lake, "items")

    done = snapshot_tables(catalog, now=NOW)
    again = snapshot_tables(catalog, now=NOW)

    rows = {row["table_name"]: row for row in read_snapshots(lake, since=NOW.date())}
    assert {result.table for result in done} == {"shop.orders", "shop.items"} == {result.table for result in again}
    assert len(read_snapshots(lake, since=NOW.date())) == len(rows) == 2
    assert rows["items"]["error"]
    assert rows["items"]["score"] is None
    orders = rows["orders"]
    assert (orders["files"], orders["partitions"], sum(orders["size_histogram"])) == (18, 3, 18)
    assert 100 - sum(json.loads(orders["score_costs"]).values()) == pytest.approx(orders["score"], abs=0.5)
    assert orders["last_optimize_at"] is None
    assert "to rewrite" in orders["planned_action"]


def test_old_operations_are_carried_over_until_the_table_is_recreated(catalog: Catalog, lake: Lake) -> None:
    key = paths.table("shop", "orders")
    table = present(lake.open(key))
    table.optimize.compact()
    snapshot_tables(catalog, now=NOW)
    for _ in range(10):
        append(lake, key, 1)
    snapshot_tables(catalog, now=NOW + dt.timedelta(hours=1))

    first, second = read_snapshots(lake, since=NOW.date(), table="orders")
    assert first["last_optimize_at"] is not None
    assert second["last_optimize_at"] == first["last_optimize_at"]
    assert second["last_write_at"] >= first["last_write_at"]

    shutil.rmtree(Path(lake.storage.prefix, key))
    make(lake, "shop", "orders", files=1, days=1)
    snapshot_tables(catalog, now=NOW + dt.timedelta(hours=2))
    assert read_snapshots(lake, since=NOW.date(), table="orders")[-1]["last_optimize_at"] is None


def test_a_trend_is_the_growth_a_day_between_the_first_and_the_last_snapshot(catalog: Catalog, lake: Lake) -> None:
    snapshot_tables(catalog, now=NOW)
    (alone,) = [trend for trend in trends(read_snapshots(lake, since=NOW.date())) if trend.table == "orders"]
    assert (alone.snapshots, alone.files, alone.files_per_day) == (1, 18, None)

    append(lake, paths.table("shop", "orders"), 4, days=(0, 1))
    snapshot_tables(catalog, now=NOW + dt.timedelta(days=2))
    broken(lake, "orders")
    snapshot_tables(catalog, now=NOW + dt.timedelta(days=3))

    found = {trend.table: trend for trend in trends(read_snapshots(lake, since=NOW.date()))}
    orders = found["orders"]
    assert (orders.snapshots, orders.days, orders.files, orders.files_per_day) == (2, 2.0, 26, 4.0)
    assert orders.bytes_per_day is not None
    assert orders.bytes_per_day > 0
    assert found["items"].files_per_day == 0.0


@pytest.fixture
def filled_catalog(tmp_path: Path) -> Catalog:
    filled_catalog = declared_shop(tmp_path)
    made_shop(filled_catalog)
    return filled_catalog


def snapshot(filled_catalog: Catalog, at: dt.datetime = NOW) -> None:
    snapshot_tables(
        filled_catalog,
        pipeline="shop",
        now=at,
        report=lambda reports, taken_at: write_tables_summary(filled_catalog, "shop", reports, taken_at=taken_at),
    )


def objects_of(filled_catalog: Catalog) -> LocalObjects:
    return LocalObjects(Path(filled_catalog.environment.lake.prefix))


def tables(filled_catalog: Catalog) -> dict[str, TableSummary]:
    summary, _ = read_summary(TablesSummary, objects_of(filled_catalog), tables_summary("shop"))
    assert summary is not None
    return {table.name: table for table in summary.tables}


def test_a_summary_has_scores_and_the_next_plan(filled_catalog: Catalog) -> None:
    snapshot(filled_catalog)

    orders, items = tables(filled_catalog)["orders"], tables(filled_catalog)["items"]
    assert "none_yet" not in tables(filled_catalog)
    assert (orders.files, orders.small_files, orders.small_share) == (18, 18, 1.0)
    assert orders.score is not None
    assert orders.score == round(100 - sum(cost.cost for cost in orders.costs))
    assert {cost.name for cost in orders.costs if cost.cost} == {"small_files"}
    assert sum(orders.size_histogram) == 18
    assert orders.next_plan is not None
    assert (orders.next_plan.partitions, orders.next_plan.files_saved, orders.next_plan.deferred) == (3, 15, 0)
    assert "3 partitions to rewrite" in orders.next_plan.reason
    assert items.next_plan is not None
    assert (items.next_plan.partitions, items.next_plan.reason) == (0, "nothing to do: 2 partitions of one file")


def test_partitions_beyond_the_budget_are_deferred(filled_catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = summaries.plan_night
    monkeypatch.setattr(summaries, "plan_night", lambda choices, budget_seconds: plan(choices, budget_seconds=0.0))

    snapshot(filled_catalog)

    tonight = tables(filled_catalog)["orders"].next_plan
    assert tonight is not None
    assert (tonight.partitions, tonight.deferred) == (0, 3)


def test_nights_are_restored_from_snapshots(filled_catalog: Catalog) -> None:
    for day in range(3):
        snapshot(filled_catalog, NOW + dt.timedelta(days=day))
    before = tables(filled_catalog)["orders"].nights
    assert [point.date for point in before] == ["2026-06-01", "2026-06-02", "2026-06-03"]
    objects_of(filled_catalog).put(tables_summary("shop"), b"{torn")

    snapshot(filled_catalog, NOW + dt.timedelta(days=2, hours=1))

    assert tables(filled_catalog)["orders"].nights == before


def test_holds_are_listed_by_table(filled_catalog: Catalog) -> None:
    PipelineHome.open(filled_catalog.environment.lake, "shop").readers.pin(
        "orders", reader="training", version=1, hours=5
    )

    snapshot(filled_catalog)

    (hold,) = tables(filled_catalog)["orders"].holds
    assert "training" in hold.by
    assert hold.since
    assert tables(filled_catalog)["items"].holds == ()


def test_a_damaged_table_keeps_its_nights(filled_catalog: Catalog) -> None:
    snapshot(filled_catalog)
    log = Path(filled_catalog.environment.lake.prefix, "tables/shop/orders/_delta_log", f"{0:020d}.json")
    log.write_text("{")

    snapshot(filled_catalog, NOW + dt.timedelta(days=1))

    orders = tables(filled_catalog)["orders"]
    assert orders.error
    assert orders.score is None
    assert [point.date for point in orders.nights] == ["2026-06-01"]


def test_a_failed_summary_does_not_fail_the_snapshot(filled_catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> bool:
        raise OSError("the disk is full")

    monkeypatch.setattr(summaries, "write_summary", refuse)

    snapshot(filled_catalog)

    assert objects_of(filled_catalog).get(tables_summary("shop")) is None


NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


def drawn_snapshot(table: str, day: int, score: int | None, **found: Any) -> dict[str, Any]:
    known = {"files": 10, "small_files": 4, "bytes": 5 << 20}
    at = NOON + dt.timedelta(days=day)
    return {"owner": "shop", "table_name": table, "taken_at": at, "score": score, **known, **found}


def test_the_worst_tables_have_the_lowest_newest_score() -> None:
    rows = [
        drawn_snapshot("a", 0, 10),
        drawn_snapshot("b", 0, 90),
        drawn_snapshot("c", 0, 95),
        drawn_snapshot("d", 0, None),
    ]
    rows += [
        drawn_snapshot("a", 1, 80),
        drawn_snapshot("b", 1, 30),
        drawn_snapshot("c", 1, None),
        drawn_snapshot("d", 1, None),
    ]

    found = worst_tables(rows, 3)

    assert list(found) == ["shop.b", "shop.a", "shop.c"]
    assert [row["score"] for row in found["shop.c"]] == [95, None]


def test_small_file_share_needs_files() -> None:
    assert small_file_share(drawn_snapshot("a", 0, 1)) == 0.4
    assert small_file_share(drawn_snapshot("a", 0, 1, files=0, small_files=0)) is None
    assert small_file_share(drawn_snapshot("a", 0, 1, files=None, small_files=None)) is None


def test_a_page_of_no_tables_says_so(tmp_path: Path) -> None:
    assert "0 tables." in write_trend_chart(tmp_path / "none.html", {}).read_text()


def test_more_tables_than_colours_are_in_charts_of_their_own(tmp_path: Path) -> None:
    by_table = {f"shop.t{number}": [drawn_snapshot(f"t{number}", day, 50) for day in range(3)] for number in range(11)}

    page = write_trend_chart(tmp_path / "many.html", by_table).read_text()

    assert page.count("<svg") == 4 * 2
    assert "Score, tables 1 to 8" in page
    assert "Score, tables 9 to 11" in page
    assert page.count("</i>shop.t10</li>") == 4
    assert "2026-01-02 12:00: shop.t10  50" in page
