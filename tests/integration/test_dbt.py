"""dbt over the lake: `deltaworks dbt sources` read by dbt-duckdb, which has an environment of its own."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltaworks.control import paths
from deltaworks.scaffolding.other_tools import dbt_sources
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from deltaworks.testing import append_rows, catalog_of, declare_table, pipeline_spec, write_files

pytestmark = pytest.mark.timeout(900)
#: The newest releases whose dependencies are all on PyPI: dbt-core 1.12 fetches a parser from elsewhere.
PACKAGES = ("dbt-core==1.10.23", "dbt-duckdb==1.10.1", "deltalake[pyarrow]==1.6.6", "pytz")
NOW = dt.datetime.now(dt.UTC)
PROJECT = {
    "dbt_project.yml": "name: shop\nversion: '1.0'\nprofile: lake\nmodel-paths: [models]\n",
    "profiles.yml": (
        "lake: {target: dev, outputs: {dev: {type: duckdb, path: 'out.duckdb', plugins: [{module: delta}]}}}\n"
    ),
    "models/weekly.sql": (
        "{{ config(materialized='table') }}\n"
        "SELECT date_trunc('week', event_date) AS week, sum(orders) AS orders\n"
        "FROM {{ source('shop', 'daily') }} GROUP BY 1"
    ),
}


@pytest.fixture(scope="module")
def dbt(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The command `dbt` in a new environment; skips without a package registry."""
    folder, uv = tmp_path_factory.mktemp("dbt"), shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
    python = str(folder / "bin" / "python")
    installed = subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", python, *PACKAGES], check=False, capture_output=True, text=True
    )
    if installed.returncode:
        pytest.skip(f"the package registry is not reachable: {installed.stderr[-300:]}")
    return str(folder / "bin" / "dbt")


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    gold = {"name": "daily", "sql": "daily.sql", "reads": ["orders"], "partition_by": "event_date"}
    described = {**gold, "description": "Orders by day", "columns": {"orders": "Number of orders"}}
    catalog = catalog_of(tmp_path / "lake", pipeline_spec(declare_table("orders"), gold={"tables": [described]}))
    lake = Lake(catalog.environment.lake)
    days = [dt.date(2026, 3, 2) + dt.timedelta(days=number) for number in range(10)]
    append_rows(lake, paths.table("shop", "daily"), pa.table({"event_date": days, "orders": list(range(10))}))
    arrived = pa.array([NOW - dt.timedelta(minutes=1), NOW], pa.timestamp("us", tz="UTC"))
    append_rows(lake, paths.table("shop", "orders"), pa.table({"event_id": ["a", "b"], "_ingested_at": arrived}))
    return catalog


def run(dbt: str, folder: Path, *words: str) -> None:
    done = subprocess.run(
        [dbt, *words, "--profiles-dir", "."],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "DO_NOT_TRACK": "1", "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_a_model_on_gold_is_built_and_sources_are_fresh(dbt: str, catalog: Catalog, tmp_path: Path) -> None:
    project = tmp_path / "project"
    write_files(project, {**PROJECT, "models/sources.yml": dbt_sources(catalog)})

    run(dbt, project, "build")
    run(dbt, project, "source", "freshness")

    query = "SELECT sum(orders), count(*) FROM weekly"
    program = (
        f"import duckdb, json; print(json.dumps(duckdb.connect('out.duckdb').sql('{query}').fetchall(), default=int))"
    )
    python = Path(dbt).with_name("python")
    shown = subprocess.run([python, "-c", program], cwd=project, check=True, capture_output=True, text=True)
    assert json.loads(shown.stdout) == [[45, 2]]
    measured = json.loads((project / "target/sources.json").read_text())["results"]
    assert {one["unique_id"]: one["status"] for one in measured} == {"source.shop.shop.orders": "pass"}
    manifest: dict[str, Any] = json.loads((project / "target/manifest.json").read_text())
    daily = manifest["sources"]["source.shop.shop.daily"]
    assert daily["description"] == "Orders by day"
    assert daily["columns"]["orders"]["description"] == "Number of orders"
