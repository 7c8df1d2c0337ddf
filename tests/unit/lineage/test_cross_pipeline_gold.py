"""Lineage of gold that reads gold of another pipeline: its input table and column origins."""

from __future__ import annotations

import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from deltaworks.control import paths
from deltaworks.lineage.gold import gold_inputs, gold_outputs
from deltaworks.specs.catalog import Catalog
from deltaworks.testing import load_project
from tests.unit.specs.conftest import PIPELINE

SQL = """\
SELECT daily.event_date, sum(daily.turnover) AS turnover, max(o.amount) AS largest
FROM shop__daily AS daily JOIN orders AS o USING (event_date) GROUP BY 1
"""
GOLD = "gold:\n  tables: [{{name: {name}, sql: {name}.sql, reads: [{reads}], partition_by: event_date}}]\n"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """`board` reads gold of `shop`, which was built: its columns are in its table alone."""
    pipelines, files = [], {}
    for name, table, reads, sql in (
        ("shop", "daily", "orders", "SELECT event_date, sum(amount) AS turnover FROM orders GROUP BY 1"),
        ("board", "weekly", "shop.daily, orders", SQL),
    ):
        declared = PIPELINE.replace("pipeline: shop", f"pipeline: {name}")
        pipelines.append(declared + GOLD.format(name=table, reads=reads))
        files[f"pipelines/{name}/{table}.sql"] = sql
    rows = pa.table({"event_date": [datetime.date(2026, 1, 1)], "turnover": [1.5]})
    write_deltalake(tmp_path / "lake" / paths.table("shop", "daily"), rows)
    return load_project(tmp_path, *pipelines, files=files)


def test_the_input_is_the_table_of_the_other_pipeline(catalog: Catalog) -> None:
    inputs = {dataset.name.rpartition("/lake/")[2]: dataset for dataset in gold_inputs(catalog, "board", {})}

    assert set(inputs) == {paths.table("shop", "daily"), paths.table("board", "orders")}
    assert dict(inputs[paths.table("shop", "daily")].fields) == {"event_date": "date", "turnover": "double"}


def test_column_lineage_reaches_the_table_of_the_other_pipeline(catalog: Catalog) -> None:
    (output,) = gold_outputs(catalog, "board", {"weekly": 3})

    origins = {
        name: [(column.dataset.rpartition("/lake/")[2], column.name) for column in columns]
        for name, columns in output.columns.items()
    }
    assert origins["turnover"] == [(paths.table("shop", "daily"), "turnover")]
    assert origins["largest"] == [(paths.table("board", "orders"), "amount")]
    assert (paths.table("shop", "daily"), "event_date") in origins["event_date"]
    assert output.rows == 3
