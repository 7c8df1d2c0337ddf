"""Tables by name in a catalog, and those that are missing."""

from __future__ import annotations

import dataclasses
import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest
import sqlglot
from deltalake import DeltaTable
from sqlglot import exp

from deltaworks.control import paths
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.schedules import SCHEDULES_VARIABLE
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.lake import Lake
from deltaworks.tables.query import external_session_settings, how_a_table_is_created, registration_statements
from deltaworks.testing import catalog_of, declare_table, pipeline_spec
from tests.unit.tables.test_query import MUTABLE


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return catalog_of(tmp_path / "it's", MUTABLE)


def make(catalog: Catalog, name: str, **columns: pa.DataType) -> None:
    schema = pa.schema([("id", pa.string()), *columns.items()])
    Lake(catalog.environment.lake).ensure(paths.table("shop", name), schema, user_metadata="{}")


def test_every_existing_table_is_registered_and_missing_ones_are_listed(catalog: Catalog) -> None:
    assert registration_statements(catalog) == ([], ["shop.visits", "shop.requests", *_OTHERS])

    make(catalog, "requests")
    statements, absent = registration_statements(catalog, ["shop"])

    place = catalog.environment.lake.uri(paths.table("shop", "requests")).replace("'", "\\'")
    assert statements == [
        "CREATE SCHEMA IF NOT EXISTS `shop`",
        f"CREATE TABLE IF NOT EXISTS `shop`.`requests` USING delta LOCATION '{place}'",
    ]
    assert absent == ["shop.visits", *_OTHERS]


def test_a_table_whose_rows_are_marked_as_deleted_has_a_view_without_them(catalog: Catalog) -> None:
    make(catalog, "visits", _deleted=pa.bool_())

    statements, _ = registration_statements(catalog)

    assert statements[0] == "CREATE SCHEMA IF NOT EXISTS `shop`"
    assert statements[2] == (
        "CREATE OR REPLACE VIEW `shop`.`visits_current` AS SELECT * FROM `shop`.`visits` "
        "WHERE NOT coalesce(`_deleted`, false)"
    )
    for statement in statements:
        assert isinstance(sqlglot.parse_one(statement, read="spark"), exp.Create)


def test_addresses_on_s3_have_the_scheme_of_spark(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    make(catalog, "requests")
    there = DeltaTable(catalog.environment.lake.prefix + "/" + paths.table("shop", "requests"))
    monkeypatch.setattr(Lake, "open", lambda _self, key: there if key.endswith("requests") else None)
    on_s3 = StorageSpec.model_validate({"root": "s3://lake", "region": "eu-central-1"})
    on_s3_catalog = dataclasses.replace(catalog, environment=catalog.environment.model_copy(update={"lake": on_s3}))

    assert registration_statements(on_s3_catalog)[0][1].endswith("LOCATION 's3a://lake/tables/shop/requests'")


def test_session_settings_contain_no_credentials(catalog: Catalog) -> None:
    lake = StorageSpec.model_validate(
        {"root": "s3://lake", "region": "eu-central-1", "access_key": "env:A", "secret_key": "env:B"}
    )
    environment = catalog.environment.model_copy(update={"lake": lake})

    settings = dict(
        external_session_settings(Catalog(environment=environment, relays={}, pipelines={}, root=catalog.root))
    )

    assert settings["spark.sql.catalog.spark_catalog"] == "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    assert settings["spark.hadoop.fs.s3a.bucket.lake.endpoint.region"] == "eu-central-1"
    assert not [name for name in settings if "key" in name]


_OTHERS = ["shop.quarantine", "shop.names", "shop.intervals"]


NOW = dt.datetime(2026, 3, 1, 12, 3, tzinfo=dt.UTC)


def shop(lag: str | None = "15m", **gold: object) -> PipelineSpec:
    table = {"name": "daily", "sql": "gold/daily.sql", "reads": ["orders"], "partition_by": "event_date"} | gold
    return pipeline_spec(
        declare_table("orders", "level int"),
        gold={"lag": lag, "tables": [table]},
        views=[{"name": "recent", "sql": "SELECT 1", "reads": ["daily"]}],
    )


def test_a_table_that_does_not_exist_yet_names_its_next_build_or_command(monkeypatch: pytest.MonkeyPatch) -> None:
    command = "`deltaworks gold build shop --tables daily` builds it now."

    assert how_a_table_is_created(shop(), "daily", now=NOW) == (
        f"shop__gold builds it at 2026-03-01 12:15 UTC; {command}"
    )
    assert how_a_table_is_created(shop(None), "daily", now=NOW) == command
    assert "The stream builds it within 15s" in how_a_table_is_created(shop("15s"), "daily", now=NOW)
    assert "view of daily" in how_a_table_is_created(shop(), "recent", now=NOW)
    assert "Start the stream" in how_a_table_is_created(shop(), "orders", now=NOW)
    monkeypatch.setenv(SCHEDULES_VARIABLE, "off")
    assert how_a_table_is_created(shop(), "daily", now=NOW) == command
