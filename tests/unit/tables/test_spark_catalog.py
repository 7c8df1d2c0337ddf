"""Tables and views by name in a Spark session's catalog, and those that are excluded."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pytest
import sqlglot
from deltalake import DeltaTable
from sqlglot import exp

from deltaworks.control import paths
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.lake import Lake
from deltaworks.tables.spark_catalog import external_session_settings, registration
from deltaworks.testing import catalog_of, declare_pipeline, declare_table, load_project
from tests.unit.tables.test_query import MUTABLE


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return catalog_of(tmp_path / "it's", MUTABLE)


def make(catalog: Catalog, name: str, **columns: pa.DataType) -> None:
    schema = pa.schema([("id", pa.string()), *columns.items()])
    Lake(catalog.environment.lake).ensure(paths.table("shop", name), schema, user_metadata="{}")


def test_every_existing_table_is_registered_and_missing_ones_are_listed(catalog: Catalog) -> None:
    assert registration(catalog).script == []
    assert registration(catalog).missing == ["shop.visits", "shop.requests", *_OTHERS]

    make(catalog, "requests")
    registered = registration(catalog, ["shop"])

    place = catalog.environment.lake.uri(paths.table("shop", "requests")).replace("'", "\\'")
    assert registered.script == [
        "CREATE SCHEMA IF NOT EXISTS `shop`",
        f"CREATE TABLE IF NOT EXISTS `shop`.`requests` USING delta LOCATION '{place}'",
    ]
    assert registered.missing == ["shop.visits", *_OTHERS]
    assert registration(catalog, existing=["shop.requests"]).statements == {}


def test_a_table_whose_rows_are_marked_as_deleted_is_a_view_without_them(catalog: Catalog) -> None:
    make(catalog, "visits", _deleted=pa.bool_())
    make(catalog, "names")
    make(catalog, "quarantine")

    statements = registration(catalog).statements

    place = catalog.environment.lake.uri(paths.table("shop", "visits"))
    assert list(statements) == [
        "shop.visits", "shop.quarantine", "shop.names", "shop.file_quarantine", "shop.visits_named"
    ]  # fmt: skip
    assert statements["shop.visits"] == (
        f"CREATE OR REPLACE VIEW `shop`.`visits` WITH SCHEMA EVOLUTION AS SELECT * FROM delta.`{place}` "
        "WHERE NOT coalesce(`_deleted`, false)"
    )
    assert "LEFT JOIN `shop`.`names` AS names_" in statements["shop.visits_named"]


LARGE = "SELECT id FROM orders WHERE id > 5"


@pytest.fixture
def with_views(tmp_path: Path) -> Catalog:
    views = [
        {"name": "large", "sql": "large.sql", "reads": ["orders"]},
        {"name": "largest", "sql": "largest.sql", "reads": ["large"]},
        {"name": "odd", "sql": "odd.sql", "reads": ["orders"]},
        {"name": "oddest", "sql": "largest.sql", "reads": ["odd"]},
    ]
    declared = declare_pipeline(declare_table("orders", "id long"), views=views)
    files = {
        "large.sql": LARGE,
        "largest.sql": "SELECT max(id) AS id FROM large",
        "odd.sql": "SELECT id[1] FROM orders",
    }
    return load_project(tmp_path, declared, files={f"pipelines/shop/{name}": text for name, text in files.items()})


def test_declared_views_follow_their_tables_and_others_are_excluded_with_the_reason(with_views: Catalog) -> None:
    assert registration(with_views).excluded["shop.large"] == "the catalog does not have orders"
    make(with_views, "orders")

    registered = registration(with_views)

    assert list(registered.statements) == ["shop.orders", "shop.large", "shop.largest"]
    assert registered.statements["shop.large"].endswith(
        f" AS WITH `orders` AS (SELECT * FROM `shop`.`orders`) SELECT * FROM ({LARGE})"
    )
    assert registered.excluded == {
        "shop.odd": "Spark has no equal of id[1]",
        "shop.oddest": "the catalog does not have odd",
    }
    for statement in registered.script:
        assert isinstance(sqlglot.parse_one(statement.replace("WITH SCHEMA EVOLUTION ", ""), read="spark"), exp.Create)


def test_addresses_on_s3_have_the_scheme_of_spark(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    make(catalog, "requests")
    there = DeltaTable(catalog.environment.lake.prefix + "/" + paths.table("shop", "requests"))
    monkeypatch.setattr(Lake, "open", lambda _self, key: there if key.endswith("requests") else None)
    on_s3 = StorageSpec.model_validate({"root": "s3://lake", "region": "eu-central-1"})
    on_s3_catalog = dataclasses.replace(catalog, environment=catalog.environment.model_copy(update={"lake": on_s3}))

    assert registration(on_s3_catalog).script[1].endswith("LOCATION 's3a://lake/tables/shop/requests'")


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
