"""Unity Catalog as a catalog, against its published API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from deltaworks.catalogs.base import plan_changes
from deltaworks.catalogs.unity import UnityCatalog
from deltaworks.errors import ConfigError, TransientError
from deltaworks.specs.environment_sections import UnityCatalogSpec
from tests.unit.catalogs.entries import COLUMNS, column, entry
from tests.unit.catalogs.unity_server import UnityServer, running_unity

ROOT = "s3://lake/tables/shop"


@pytest.fixture
def server() -> Iterator[UnityServer]:
    with running_unity() as state:
        yield state


@pytest.fixture
def client(server: UnityServer) -> Iterator[UnityCatalog]:
    catalog = UnityCatalog(UnityCatalogSpec(kind="unity", name="uc", url=server.url, catalog="lake"))
    yield catalog
    catalog.close()


def changes(client: UnityCatalog, *entries: Any) -> list[tuple[str, str, str]]:
    planned = plan_changes("uc", client, "shop", entries, client.registered("shop"), root=ROOT)
    return [(change.table, change.action, change.difference) for change in planned]


def test_a_server_without_the_schema_has_no_entries(client: UnityCatalog) -> None:
    assert client.registered("shop") == {}


def test_catalog_schema_and_table_are_created_as_the_api_publishes(client: UnityCatalog, server: UnityServer) -> None:
    client.ensure_schema("shop", "The shop")
    client.ensure_schema("shop", "The shop")
    client.put(entry(), None)

    assert {*server.catalogs} == {"lake"}
    assert server.schemas["lake.shop"]["comment"] == "The shop"
    table = server.tables["lake.shop.orders"]
    assert table["storage_location"] == "s3://lake/tables/shop/orders"
    assert table["properties"]["deltaworks_personal_columns"] == "event_id"
    by_name = {one["name"]: one for one in table["columns"]}
    assert (by_name["amount"]["type_text"], by_name["amount"]["type_name"]) == ("bigint", "LONG")
    assert (by_name["price"]["type_precision"], by_name["price"]["type_scale"]) == (10, 2)
    assert by_name["items"]["type_name"] == "ARRAY"
    assert json.loads(by_name["event_id"]["type_json"])["metadata"]["deltaworks_personal"] == "true"
    assert by_name["event_date"]["partition_index"] == 0
    assert changes(client, entry()) == [("shop.orders", "none", "")]


def test_an_evolved_table_is_created_again_with_its_new_columns(client: UnityCatalog, server: UnityServer) -> None:
    client.ensure_schema("shop", "The shop")
    client.put(entry(), None)
    evolved = entry(columns=(*COLUMNS, column("discount", "double")))

    assert changes(client, evolved) == [("shop.orders", "update", "columns (discount)")]
    client.put(evolved, client.registered("shop")["orders"])

    assert server.tables["lake.shop.orders"]["columns"][-1]["name"] == "discount"
    assert changes(client, evolved) == [("shop.orders", "none", "")]


def test_more_tables_than_a_page_are_listed(client: UnityCatalog) -> None:
    client.ensure_schema("shop", "The shop")
    names = [f"t{number:02}" for number in range(53)]
    for name in names:
        client.put(entry(name, columns=(column("id", "string"),)), None)

    assert sorted(client.registered("shop")) == names


def test_a_dropped_table_loses_its_entry_once(client: UnityCatalog, server: UnityServer) -> None:
    client.ensure_schema("shop", "The shop")
    client.put(entry(), None)

    assert changes(client) == [("shop.orders", "drop", "")]
    client.drop("shop", "orders")
    client.drop("shop", "orders")
    assert server.tables == {}


def test_an_outage_is_waited_out(client: UnityCatalog, server: UnityServer) -> None:
    server.failures = 2
    assert client.registered("shop") == {}
    assert server.failures == 0


def test_a_server_that_stays_away_is_named(client: UnityCatalog, server: UnityServer) -> None:
    server.failures = 100
    with pytest.raises(TransientError, match=r"CATALOG_UNAVAILABLE.*503.*starting"):
        client.registered("shop")


def test_a_wrong_token_is_refused_with_the_servers_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UC_TOKEN", "other")
    with running_unity("right") as state:
        spec = UnityCatalogSpec(kind="unity", name="uc", url=state.url, token="env:UC_TOKEN")
        with pytest.raises(ConfigError, match=r"CATALOG_REFUSED.*401.*no valid token"):
            UnityCatalog(spec).registered("shop")
        monkeypatch.setenv("UC_TOKEN", "right")
        assert UnityCatalog(spec).registered("shop") == {}
