"""The table summary has the snapshot and the next plan, and never fails the snapshot."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import LocalObjects
from deltaworks.control.paths import tables_summary
from deltaworks.control.summaries.base import read_summary
from deltaworks.control.summaries.tables import TablesSummary, TableSummary
from deltaworks.maintenance.table_health import summary as summaries
from deltaworks.maintenance.table_health.snapshots import snapshot_tables
from deltaworks.maintenance.table_health.summary import write_tables_summary
from deltaworks.specs.catalog import Catalog
from tests.unit.maintenance.table_health.health_harness import NOW, declared_shop, made_shop


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    catalog = declared_shop(tmp_path)
    made_shop(catalog)
    return catalog


def snapshot(catalog: Catalog, at: dt.datetime = NOW) -> None:
    snapshot_tables(
        catalog,
        pipeline="shop",
        now=at,
        report=lambda reports, taken_at: write_tables_summary(catalog, "shop", reports, taken_at=taken_at),
    )


def objects_of(catalog: Catalog) -> LocalObjects:
    return LocalObjects(Path(catalog.environment.lake.prefix))


def tables(catalog: Catalog) -> dict[str, TableSummary]:
    summary, _ = read_summary(TablesSummary, objects_of(catalog), tables_summary("shop"))
    assert summary is not None
    return {table.name: table for table in summary.tables}


def test_a_summary_has_scores_and_the_next_plan(catalog: Catalog) -> None:
    snapshot(catalog)

    orders, items = tables(catalog)["orders"], tables(catalog)["items"]
    assert "none_yet" not in tables(catalog)
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


def test_partitions_beyond_the_budget_are_deferred(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = summaries.plan_night
    monkeypatch.setattr(summaries, "plan_night", lambda choices, budget_seconds: plan(choices, budget_seconds=0.0))

    snapshot(catalog)

    tonight = tables(catalog)["orders"].next_plan
    assert tonight is not None
    assert (tonight.partitions, tonight.deferred) == (0, 3)


def test_nights_are_restored_from_snapshots(catalog: Catalog) -> None:
    for day in range(3):
        snapshot(catalog, NOW + dt.timedelta(days=day))
    before = tables(catalog)["orders"].nights
    assert [point.date for point in before] == ["2026-06-01", "2026-06-02", "2026-06-03"]
    objects_of(catalog).put(tables_summary("shop"), b"{torn")

    snapshot(catalog, NOW + dt.timedelta(days=2, hours=1))

    assert tables(catalog)["orders"].nights == before


def test_holds_are_listed_by_table(catalog: Catalog) -> None:
    PipelineHome.open(catalog.environment.lake, "shop").readers.pin("orders", reader="training", version=1, hours=5)

    snapshot(catalog)

    (hold,) = tables(catalog)["orders"].holds
    assert "training" in hold.by
    assert hold.since
    assert tables(catalog)["items"].holds == ()


def test_a_damaged_table_keeps_its_nights(catalog: Catalog) -> None:
    snapshot(catalog)
    log = Path(catalog.environment.lake.prefix, "tables/shop/orders/_delta_log", f"{0:020d}.json")
    log.write_text("{")

    snapshot(catalog, NOW + dt.timedelta(days=1))

    orders = tables(catalog)["orders"]
    assert orders.error
    assert orders.score is None
    assert [point.date for point in orders.nights] == ["2026-06-01"]


def test_a_failed_summary_does_not_fail_the_snapshot(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> bool:
        raise OSError("the disk is full")

    monkeypatch.setattr(summaries, "write_summary", refuse)

    snapshot(catalog)

    assert objects_of(catalog).get(tables_summary("shop")) is None
