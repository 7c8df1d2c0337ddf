"""`deltaworks tables register`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from deltaworks.cli import tables
from deltaworks.control import paths
from deltaworks.tables.lake import Lake
from deltaworks.testing import declare_pipeline, declare_table, load_project
from tests.commands import invoke


def test_it_prints_statements_and_says_apart_what_is_missing_or_excluded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = [{"name": "rounded", "sql": "rounded.sql", "reads": ["orders"]}]
    declared = declare_pipeline(
        declare_table("orders", "id long", when="order"), declare_table("later", when="later"), views=views
    )
    project = load_project(
        tmp_path, declared, files={"pipelines/shop/rounded.sql": "SELECT round(id) AS id FROM orders"}
    )
    monkeypatch.setattr(tables, "catalog", lambda **_: project)
    Lake(project.environment.lake).ensure(
        paths.table("shop", "orders"), pa.schema([("id", pa.int64())]), user_metadata="{}"
    )

    shown = invoke("tables", "register", columns=200)

    assert shown.exit_code == 0, shown.output
    assert [line.split(" USING")[0] for line in shown.stdout.splitlines()] == [
        "CREATE SCHEMA IF NOT EXISTS `shop`;",
        "CREATE TABLE IF NOT EXISTS `shop`.`orders`",
    ]
    assert "run this again later for: shop.later, shop.quarantine." in shown.stderr
    assert "Excluded: shop.rounded: Spark has no equal of ROUND(id)" in shown.stderr
