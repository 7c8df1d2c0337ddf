"""OPTIMIZE maintains live, gold and quarantine tables without conflicting with their writers."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import pytest

from deltaworks.errors import ConfigError
from deltaworks.maintenance import optimize_night as module
from deltaworks.maintenance.layout import optimized_tables, read_layout, select_tables
from deltaworks.maintenance.optimize_night import read_policy, select_partitions
from deltaworks.maintenance.partition_choice import TableChoice
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from tests.unit.maintenance.table_data import DAILY, DAILY_SQL, SHOP, append, make, project

LIVE = """\
tables: [{name: orders, when: {name: order}, zorder_by: [event_name]}]
live: [{name: pulse, reads: orders, window_minutes: 60, watermark_minutes: 1440}]
"""
#: Day 0 ended 27 hours ago, day 1 three hours ago.
NIGHT = dt.datetime(2026, 1, 3, 3, 1, tzinfo=dt.UTC)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return project(tmp_path, shop=SHOP + LIVE + DAILY, sql=DAILY_SQL)


@pytest.fixture
def lake(catalog: Catalog) -> Lake:
    """Three days of five files each, and many files on the third day."""
    made = Lake(catalog.environment.lake)
    for name in ("pulse", "daily", "quarantine"):
        key = make(made, "shop", name, files=5, days=3)
        append(made, key, 120, days=(2,))
    return made


def chosen(found: list[TableChoice]) -> dict[str, dict[str, str]]:
    """Returns the chosen days of each table, with reasons."""
    return {each.table: {str(choice.partition[0][1]): choice.reason for choice in each.partitions} for each in found}


def test_closed_days_are_merged_and_open_ones_only_without_conflicts(catalog: Catalog, lake: Lake) -> None:
    spec = catalog.pipeline("shop")

    found = select_partitions(lake, spec, policy=read_policy(spec), now=NIGHT)

    first, second, third = "2026-01-01", "2026-01-02", "2026-01-03"
    merged = "5 small files"
    assert chosen(found) == {
        "orders": {},
        # Its watermark is a day behind: the second last day may still change.
        "pulse": {first: merged},
        "daily": {first: merged, second: merged},
        "quarantine": {first: merged, second: merged, third: "still written, with 125 small files"},
    }
    assert all(choice.action == "compact_small" for each in found for choice in each.partitions)
    assert next(each for each in found if each.table == "pulse").reason.endswith("2 partitions still written")


def test_without_only_closed_open_days_would_be_rewritten(
    catalog: Catalog, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = catalog.pipeline("shop")

    def as_appended(*arguments: object) -> object:
        return replace(read_layout(*arguments), only_closed=False)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "read_layout", as_appended)

    found = chosen(select_partitions(lake, spec, policy=read_policy(spec), now=NIGHT))

    assert all("2026-01-03" in found[name] for name in ("pulse", "daily", "quarantine"))


def test_a_layout_is_declared_or_read_from_disk(catalog: Catalog, lake: Lake) -> None:
    tables = optimized_tables(catalog.pipeline("shop"))

    assert list(tables) == ["orders", "pulse", "daily", "quarantine"]
    assert read_layout(lake, "shop", tables["orders"]).zorder_by == ("event_name",)
    assert read_layout(lake, "shop", tables["daily"]).partition_by == ("event_date",)
    assert read_layout(lake, "shop", tables["daily"]).date_columns == ("event_date",)


@pytest.mark.parametrize(
    ("name", "hint"), [("dayly", "Did you mean 'daily'?"), ("zzz", "orders, pulse, daily, quarantine")]
)
def test_an_unknown_table_is_rejected_with_the_nearest_or_the_known_ones(
    catalog: Catalog, name: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match="TABLE_UNKNOWN") as refused:
        select_tables(catalog.pipeline("shop"), [name])

    assert hint in refused.value.hint
