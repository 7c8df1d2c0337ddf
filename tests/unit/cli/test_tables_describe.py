"""`deltaworks tables describe`."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from airflow.sdk import Asset

from deltaworks.airflow.names import bronze_asset
from deltaworks.cli import tables
from deltaworks.control import paths
from deltaworks.errors import ConfigError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.descriptions import table_descriptions
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.descriptions import ensure_described
from deltaworks.tables.lake import Lake
from deltaworks.testing import catalog_of
from tests.commands import invoke
from tests.unit.tables.test_query import MUTABLE

run = partial(invoke, "tables", "describe", columns=200)


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    project = catalog_of(tmp_path, MUTABLE)
    monkeypatch.setattr(tables, "catalog", lambda: project)
    return project


def create(catalog: Catalog, name: str) -> None:
    spec, lake = catalog.pipeline("shop"), Lake(catalog.environment.lake)
    table = spec.table(name)
    ensure_described(
        lake,
        paths.table("shop", name),
        arrow_schema(table.column_types()),
        table_descriptions(spec)[name],
        user_metadata="{}",
        partition_by=table.partition_by,
    )


def test_a_table_is_described_with_its_columns_and_their_texts(catalog: Catalog) -> None:
    create(catalog, "visits")

    shown = run("shop.visits")

    assert shown.exit_code == 0, shown.output
    assert catalog.environment.lake.uri(paths.table("shop", "visits")) in shown.output.replace("\n", "")
    lines = [line.split() for line in shown.output.splitlines()]
    (event_date,) = [line for line in lines if line[:1] == ["event_date"]]
    assert event_date[:4] == ["event_date", "date", "UTC", "date"]


def test_the_description_is_available_as_json(catalog: Catalog) -> None:
    create(catalog, "visits")

    record = json.loads(run("shop.visits", "--json").output)

    assert (record["pipeline"], record["name"], record["kind"], record["version"]) == ("shop", "visits", "bronze", 0)
    assert record["partition_by"] == list(catalog.pipeline("shop").table("visits").partition_by)
    assert record["asset"].startswith('Asset(name="bronze.shop.visits"')
    assert record["properties"]["delta.checkpointInterval"] == "50"
    types = {column["name"]: column["type"] for column in record["columns"]}
    assert (types["event_time"], types["_batch_id"]) == ("timestamp", "bigint")


def test_a_text_that_is_not_in_delta_yet_is_shown_as_declared(catalog: Catalog) -> None:
    Lake(catalog.environment.lake).ensure(
        paths.table("shop", "requests"), pa.schema([("event_time", pa.timestamp("us", tz="UTC"))]), user_metadata="{}"
    )
    assert "Time of the event, UTC" in run("shop.requests").output


def test_a_table_that_does_not_exist_yet_says_so(catalog: Catalog) -> None:
    assert "Not created yet." in run("shop.visits").output


@pytest.mark.parametrize("is_created", [True, False])
def test_the_asset_of_a_table_is_shown_as_python_that_a_dag_can_name(catalog: Catalog, is_created: bool) -> None:
    if is_created:
        create(catalog, "visits")
    shown = "".join(run("shop.visits").output.split())

    code = re.search(r"Asset\(.*?\)", shown)

    assert code is not None, shown
    registered = bronze_asset(catalog.environment.lake, "shop", "visits")
    assert eval(code[0], {"Asset": Asset}) == registered


def test_a_table_that_is_no_asset_has_none(catalog: Catalog) -> None:
    name = next(name for name, kind in catalog.pipeline("shop").table_kinds.items() if kind not in ("bronze", "gold"))
    assert "Asset(" not in run(f"shop.{name}").output


def test_control_tables_are_described_too(catalog: Catalog) -> None:
    assert "Ledger: offsets and state of each completed batch" in run("shop.checkpoint_store").output


def test_an_unknown_table_is_named_with_the_nearest_one(catalog: Catalog) -> None:
    error = run("shop.visit").exception
    assert isinstance(error, ConfigError)
    assert error.condition == "TABLE_UNKNOWN"
    assert "shop.visits" in error.hint
