"""OPTIMIZE of tables without a declared layout: gold is not rebuilt, and quarantine keeps its rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.provenance import user_metadata
from deltaworks.gold.input_views import read_built_from
from deltaworks.maintenance.optimize_night import optimize_tables
from deltaworks.tables.commit import Step, commit_step
from tests.unit.maintenance.table_data import DAILY, DAILY_SQL, ORDERS, SHOP, make

pytestmark = pytest.mark.integration
NIGHT = dt.datetime(2026, 1, 2, 4, tzinfo=dt.UTC)


def test_small_files_are_merged_and_nothing_else_changes(spark: SparkSession, make_project: Callable[..., Any]) -> None:
    project = make_project({"shop": (SHOP + ORDERS + DAILY, DAILY_SQL)})
    keys = {name: make(project.lake, "shop", name, files=5, days=2) for name in ("daily", "quarantine")}
    made = user_metadata(pipeline="shop", batch="", operation="rebuild_gold", built_from={"orders": 7}, fingerprint="f")
    commit_step(project.lake.open(keys["daily"]), [], step=Step("shop/built", 1), user_metadata=made)
    rows = {name: sorted(map(str, project.rows("shop", name))) for name in keys}

    done = {each.table: each for each in optimize_tables(lambda: spark, project.catalog, "shop", now=NIGHT)}
    again = optimize_tables(lambda: spark, project.catalog, "shop", now=NIGHT)

    for name, key in keys.items():
        # The second day is open.
        assert (done[name].compacted, done[name].files_before, done[name].files_after) == (1, 5, 1), name
        assert len(project.lake.open(key).file_uris()) == 6
        assert sorted(map(str, project.rows("shop", name))) == rows[name]
    assert done["orders"].reason == "it does not exist yet"
    assert all(each.skipped for each in again)
    built = read_built_from(project.lake, paths.table("shop", "daily"))
    assert (built.is_traceable, built.versions) == (True, {"orders": 7})
