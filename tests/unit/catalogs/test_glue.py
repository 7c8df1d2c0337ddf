"""AWS Glue as a catalog, on moto's Glue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import boto3
import pytest

from deltaworks.catalogs.base import Registered, plan_changes
from deltaworks.catalogs.glue import GlueCatalog
from deltaworks.specs.environment_sections import GlueCatalogSpec
from tests.moto_server import running_moto
from tests.unit.catalogs.entries import COLUMNS, column, entry

ROOT = "s3://lake/tables/shop"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with running_moto() as address:
        yield address


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLUE_KEY", "key")
    monkeypatch.setenv("GLUE_SECRET", "secret")


@pytest.fixture
def glue(endpoint: str) -> Any:
    return boto3.client(
        "glue", endpoint_url=endpoint, region_name="eu-west-1", aws_access_key_id="key", aws_secret_access_key="secret"
    )


@pytest.fixture
def client(endpoint: str, glue: Any) -> Iterator[GlueCatalog]:
    spec = GlueCatalogSpec(
        kind="glue",
        name="athena",
        database_prefix="lake_",
        endpoint=endpoint,
        region="eu-west-1",
        access_key="env:GLUE_KEY",
        secret_key="env:GLUE_SECRET",
    )
    catalog = GlueCatalog(spec)
    yield catalog
    catalog.close()
    for database in glue.get_databases()["DatabaseList"]:
        glue.delete_database(Name=database["Name"])


def changes(client: GlueCatalog, *entries: Any, unreadable: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
    planned = plan_changes(
        "athena", client, "shop", entries, client.registered("shop"), root=ROOT, unreadable=unreadable
    )
    return [(change.table, change.action, change.difference) for change in planned]


def test_a_pipeline_without_a_database_has_no_entries(client: GlueCatalog) -> None:
    assert client.registered("shop") == {}


def test_a_table_has_the_form_in_which_athena_and_trino_read_delta(client: GlueCatalog, glue: Any) -> None:
    client.ensure_schema("shop", "The shop")
    client.put(entry(), None)

    table = glue.get_table(DatabaseName="lake_shop", Name="orders")["Table"]
    storage = table["StorageDescriptor"]

    assert (table["TableType"], table["Owner"], table["Description"]) == (
        "EXTERNAL_TABLE",
        "shop-team",
        "Orders of the shop",
    )
    assert table["PartitionKeys"] == []
    assert table["Parameters"]["table_type"] == "DELTA"
    assert table["Parameters"]["spark.sql.sources.provider"] == "delta"
    assert table["Parameters"]["deltaworks_tags"] == "retail,eu"
    assert table["Parameters"]["deltaworks_personal_columns"] == "event_id"
    assert storage["Location"] == storage["SerdeInfo"]["Parameters"]["path"] == "s3://lake/tables/shop/orders"
    assert [(one["Name"], one["Type"]) for one in storage["Columns"]] == [
        ("event_id", "string"),
        ("amount", "bigint"),
        ("price", "decimal(10,2)"),
        ("items", "array<struct<id:string,count:int>>"),
        ("event_date", "date"),
    ]
    assert storage["Columns"][0]["Comment"] == "Id of the event"
    assert storage["Columns"][0]["Parameters"] == {"deltaworks_personal": "true"}
    assert storage["Columns"][4]["Parameters"] == {"deltaworks_partition": "0"}
    assert glue.get_database(Name="lake_shop")["Database"]["Description"] == "The shop"


def test_a_registered_table_needs_no_change(client: GlueCatalog) -> None:
    client.ensure_schema("shop", "The shop")
    client.ensure_schema("shop", "The shop")
    client.put(entry(), None)

    assert changes(client, entry()) == [("shop.orders", "none", "")]


def test_an_evolved_table_is_updated_and_other_tools_keep_their_parameters(client: GlueCatalog, glue: Any) -> None:
    client.ensure_schema("shop", "The shop")
    client.put(entry(), None)
    present = glue.get_table(DatabaseName="lake_shop", Name="orders")["Table"]
    parameters = {**present["Parameters"], "lakeformation.tag": "x"}
    glue.update_table(
        DatabaseName="lake_shop",
        TableInput={
            **{name: present[name] for name in ("Name", "Description", "Owner", "TableType", "StorageDescriptor")},
            "PartitionKeys": [],
            "Parameters": parameters,
        },
    )
    evolved = entry(columns=(*COLUMNS, column("discount", "double")), description="All orders")

    assert changes(client, entry()) == [("shop.orders", "none", "")]
    assert changes(client, evolved) == [("shop.orders", "update", "Description, columns (discount)")]
    client.put(evolved, client.registered("shop")["orders"])

    table = glue.get_table(DatabaseName="lake_shop", Name="orders")["Table"]
    assert table["StorageDescriptor"]["Columns"][-1]["Name"] == "discount"
    assert table["Parameters"]["lakeformation.tag"] == "x"
    assert changes(client, evolved) == [("shop.orders", "none", "")]


def test_an_entry_of_a_missing_table_is_to_be_dropped_and_those_of_people_are_not(
    client: GlueCatalog, glue: Any
) -> None:
    client.ensure_schema("shop", "The shop")
    for name in ("orders", "visits", "broken"):
        client.put(entry(name), None)
    glue.create_table(
        DatabaseName="lake_shop",
        TableInput={"Name": "by_hand", "StorageDescriptor": {"Location": "s3://elsewhere/by_hand"}},
    )

    assert changes(client, entry(), unreadable=("broken",)) == [
        ("shop.orders", "none", ""),
        ("shop.visits", "drop", ""),
    ]
    client.drop("shop", "visits")
    client.drop("shop", "visits")
    assert {*client.registered("shop")} == {"orders", "broken", "by_hand"}


def test_a_table_that_somebody_registered_first_is_replaced(client: GlueCatalog) -> None:
    client.ensure_schema("shop", "The shop")
    client.put(entry(description="Older"), None)

    client.put(entry(), None)

    assert changes(client, entry()) == [("shop.orders", "none", "")]


def test_a_table_at_another_location_is_updated(client: GlueCatalog) -> None:
    moved = replace(entry(), location="s3://other/tables/shop/orders")
    client.ensure_schema("shop", "The shop")
    client.put(moved, None)

    assert changes(client, entry()) == [("shop.orders", "update", "Location, path")]


def test_long_texts_are_cut_as_glue_requires(client: GlueCatalog) -> None:
    long = entry(columns=(column("id", "string", description="x" * 300),), description="y" * 3000)
    client.ensure_schema("shop", "z" * 3000)
    client.put(long, None)

    assert changes(client, long) == [("shop.orders", "none", "")]


def test_an_entry_without_a_location_is_never_dropped() -> None:
    planned = plan_changes(
        "athena",
        object(),
        "shop",
        [],
        {"view": Registered(location="")},
        root=ROOT,  # type: ignore[arg-type]
    )
    assert planned == []
