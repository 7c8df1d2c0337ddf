"""Commands for table health, as text and JSON."""

from __future__ import annotations

import datetime as dt
import json
import re
from functools import partial
from pathlib import Path

import pytest

from deltaworks.cli import table_health, tables
from deltaworks.control import paths
from deltaworks.errors import ConfigError
from deltaworks.maintenance.table_health.snapshots import snapshot_tables
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from tests.commands import invoke
from tests.unit.maintenance.table_data import append
from tests.unit.maintenance.table_health.test_report import broken, catalog, lake

__all__ = ["catalog", "lake"]
run = partial(invoke, "tables", columns=400)


@pytest.fixture(autouse=True)
def project(catalog: Catalog, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_health, "catalog", lambda: catalog)


def test_the_listing_shows_penalties_planned_maintenance_and_broken_tables(lake: Lake) -> None:
    broken(lake, "items")

    shown = run("shop", "--wide")

    assert shown.exit_code == 0, shown.output
    (orders,) = [line for line in shown.output.splitlines() if "shop.orders" in line]
    # What ends as one row group costs nothing for its order.
    assert "order:" not in orders
    assert "3 partitions to rewrite" in orders
    assert "saves 15 files" in orders
    assert "largest closed date " in orders
    assert "; orders from 8.0 MiB" in orders
    (items,) = [line for line in shown.output.splitlines() if "shop.items" in line]
    assert "Error" in items or "error" in items
    assert "not created yet" in shown.output


def test_the_listing_is_available_as_json() -> None:
    shown = run("shop", "--json", "--unreferenced")

    orders = next(table for table in json.loads(shown.output) if table["name"] == "orders")
    assert orders["health"]["files"] == 18
    assert orders["health"]["skew"] > 0
    assert orders["choice"]["files_saved"] == 15
    assert orders["unreferenced"] == {"files": 0, "bytes": 0}
    assert sum(part["weight"] for part in orders["score"]["parts"]) == 100


def test_one_table_is_shown_in_detail() -> None:
    shown = run("show", "shop.orders", "--unreferenced")

    assert shown.exit_code == 0, shown.output
    for said in (
        "score",
        "18 below 1.0 MiB",
        "event_date=2026-01-01",
        "maintenance would:",
        "Z-order: largest closed date ",
        "commits since",
        "unneeded",
    ):
        assert said in shown.output, said
    as_data = json.loads(run("show", "shop.orders", "--json").output)
    assert len(as_data["health"]["partition_health"]) == 3
    assert "Not created yet." in run("show", "shop.none_yet").output
    failed = run("show", "shop.nothing")
    assert isinstance(failed.exception, ConfigError)
    assert failed.exception.condition == "TABLE_UNKNOWN"


def test_growth_is_computed_from_snapshots(catalog: Catalog, lake: Lake) -> None:
    assert "There are no snapshots yet" in run("trend").output
    now = dt.datetime.now(tz=dt.UTC)
    snapshot_tables(catalog, now=now - dt.timedelta(days=2))
    append(lake, paths.table("shop", "orders"), 2, days=(0,))
    snapshot_tables(catalog, now=now)

    shown = run("trend", "shop")

    (orders,) = [line for line in shown.output.splitlines() if "shop.orders" in line]
    assert "+1.0" in orders
    (data,) = [each for each in json.loads(run("trend", "--json").output) if each["table"] == "orders"]
    assert data["files_per_day"] == pytest.approx(1.0)


def test_growth_is_drawn_for_one_table_or_the_worst(catalog: Catalog, lake: Lake, tmp_path: Path) -> None:
    now = dt.datetime.now(tz=dt.UTC)
    for days_ago in (2, 1):
        snapshot_tables(catalog, now=now - dt.timedelta(days=days_ago))

    drawn = run("trend", "shop", "--worst", "1", "--chart", str(tmp_path / "new" / "all.html"))
    run("trend", "shop.orders", "--chart", str(tmp_path / "orders.html"))

    assert f"Charts: {tmp_path / 'new' / 'all.html'}" in drawn.output.replace("\n", "")
    page = (tmp_path / "orders.html").read_text()
    assert all(f"<h2>{title}</h2>" in page for title in ("Score", "Files", "Share of small files", "Size"))
    assert page.count("</i>shop.orders</li>") == 4
    others = (tmp_path / "new" / "all.html").read_text()
    assert len(set(re.findall(r"</i>(shop\.\w+)</li>", others))) == 1


def test_versions_are_pinned_listed_and_unpinned(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "catalog", lambda: catalog)

    assert "is pinned from version 1 on for training" in run("pin", "shop.orders", "training", "--hours", "2").output
    listed = run("readers", "shop").output
    assert "the reader training until" in listed
    assert "orders: training pins version 1 until" in listed
    assert run("unpin", "shop.orders", "training").output == "Unpinned shop.orders.\n"
    assert "has pinned no version" in run("unpin", "shop.orders", "training").output
    assert "training" not in run("readers", "shop").output
    assert isinstance(run("pin", "shop.nothing", "training").exception, ConfigError)


@pytest.mark.parametrize("columns", [80, 120])
def test_listings_of_tables_fit_the_terminal_with_one_line_for_a_table_without_work(lake: Lake, columns: int) -> None:
    broken(lake, "items")

    for words in (("shop",), ("shop", "--control"), ("show", "shop.orders"), ("show", "shop.items"), ("trend", "shop")):
        lines = invoke("tables", *words, columns=columns).output.splitlines()
        assert [line for line in lines if len(line) > columns] == [], words
    lines = invoke("tables", "shop", columns=columns).output.splitlines()
    quiet = next(n for n, line in enumerate(lines) if line.startswith("shop.none_yet"))
    assert lines[quiet + 1].startswith("shop."), "nothing is folded under it"
    assert lines[0].split()[:3] == ["table", "kind", "score"]
