"""Keeping catalogs up: a pipeline's tables as their entries, failures as alerts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import Field
from deltalake.schema import PrimitiveType

from deltaworks.alerts.raising import open_subjects
from deltaworks.catalogs.sync import ALERT_CAUSE, CatalogKeeper, kept_up, selected_catalogs, sync_pipeline
from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from deltaworks.errors import ConfigError
from deltaworks.operations.stream_parts import STREAM_PARTS, keep_catalogs
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.descriptions import table_descriptions
from deltaworks.specs.environment_sections import HiveCatalogSpec, UnityCatalogSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.descriptions import ensure_described
from deltaworks.tables.lake import Lake, remove_folder
from deltaworks.testing import catalog_of
from tests.commands import invoke
from tests.unit.catalogs.unity_server import UnityServer, running_unity
from tests.unit.tables.test_query import MUTABLE
from tests.waiting import eventually


@pytest.fixture
def server() -> Iterator[UnityServer]:
    with running_unity() as state:
        yield state


@pytest.fixture
def catalog(tmp_path: Path, server: UnityServer) -> Catalog:
    project = catalog_of(tmp_path, MUTABLE)
    unity = UnityCatalogSpec(kind="unity", name="uc", url=server.url, catalog="lake")
    return replace(project, environment=project.environment.model_copy(update={"catalogs": (unity,)}))


def create(catalog: Catalog, name: str, **more: str) -> None:
    spec, lake = catalog.pipeline("shop"), Lake(catalog.environment.lake)
    types = spec.table(name).column_types() | more
    key, description = paths.table("shop", name), table_descriptions(spec)[name]
    ensure_described(lake, key, arrow_schema(types), description, user_metadata="{}")


def actions(results: list[Any]) -> dict[str, tuple[str, bool]]:
    return {change.table: (change.action, change.applied) for result in results for change in result.changes}


def open_alerts(catalog: Catalog) -> list[str]:
    return sorted(open_subjects(open_objects(catalog.environment.lake), ALERT_CAUSE))


def test_created_tables_are_registered_once(catalog: Catalog, server: UnityServer) -> None:
    create(catalog, "visits")

    assert actions(sync_pipeline(catalog, "shop")) == {"shop.visits": ("create", True)}
    assert actions(sync_pipeline(catalog, "shop")) == {"shop.visits": ("none", False)}

    table = server.tables["lake.shop.visits"]
    assert table["storage_location"] == catalog.environment.lake.uri("tables/shop/visits")
    comments = {column["name"]: column.get("comment") for column in table["columns"]}
    assert comments["event_time"] == "Time of the event, UTC"


def test_an_evolved_table_is_updated(catalog: Catalog, server: UnityServer) -> None:
    create(catalog, "requests")
    sync_pipeline(catalog, "shop")
    table = Lake(catalog.environment.lake).open(paths.table("shop", "requests"))
    assert table is not None
    table.alter.add_columns([Field("coupon", PrimitiveType("string"), nullable=True)])

    (result,) = sync_pipeline(catalog, "shop")

    assert [change.difference for change in result.changes] == ["columns (coupon)"]
    assert server.tables["lake.shop.requests"]["columns"][-1]["name"] == "coupon"


def test_an_entry_of_a_dropped_table_stays_unless_it_is_to_be_dropped(catalog: Catalog, server: UnityServer) -> None:
    for name in ("visits", "requests"):
        create(catalog, name)
    sync_pipeline(catalog, "shop")
    remove_folder(catalog.environment.lake, "tables/shop/visits")

    assert actions(sync_pipeline(catalog, "shop"))["shop.visits"] == ("drop", False)
    assert "lake.shop.visits" in server.tables
    assert actions(sync_pipeline(catalog, "shop", drop=True, dry_run=True))["shop.visits"] == ("drop", False)
    assert actions(sync_pipeline(catalog, "shop", drop=True))["shop.visits"] == ("drop", True)
    assert {*server.tables} == {"lake.shop.requests"}


def test_a_table_that_cannot_be_read_keeps_its_entry(catalog: Catalog, server: UnityServer) -> None:
    create(catalog, "visits")
    sync_pipeline(catalog, "shop")
    commit = Path(catalog.environment.lake.prefix, "tables/shop/visits/_delta_log", f"{0:020d}.json")
    commit.write_text("{broken")

    assert actions(sync_pipeline(catalog, "shop", drop=True)) == {}
    assert "lake.shop.visits" in server.tables


def test_a_failing_catalog_raises_an_alert_until_it_is_synchronised(catalog: Catalog, server: UnityServer) -> None:
    create(catalog, "visits")
    server.token = "unknown"
    (result,) = sync_pipeline(catalog, "shop")
    assert result.error is not None
    assert open_alerts(catalog) == ["shop.uc"]

    server.token = ""
    sync_pipeline(catalog, "shop")
    assert open_alerts(catalog) == []


def test_a_failing_catalog_does_not_keep_the_others_from_being_synchronised(
    catalog: Catalog, server: UnityServer
) -> None:
    create(catalog, "visits")
    away = UnityCatalogSpec(kind="unity", name="away", url="http://127.0.0.1:9", timeout_seconds=1)
    environment = catalog.environment.model_copy(update={"catalogs": (away, *catalog.environment.catalogs)})

    first, second = sync_pipeline(replace(catalog, environment=environment), "shop")

    assert first.error is not None
    assert first.error.condition == "CATALOG_UNAVAILABLE"
    assert second.error is None
    assert "lake.shop.visits" in server.tables


def test_a_hive_metastore_is_left_to_jobs_that_can_open_a_session(catalog: Catalog) -> None:
    hive = HiveCatalogSpec(kind="hive", name="hive", pipelines=("shop",))
    other = HiveCatalogSpec(kind="hive", name="other", pipelines=("games",))
    environment = catalog.environment.model_copy(update={"catalogs": (hive, other)})
    project = replace(catalog, environment=environment)

    assert [one.name for one in selected_catalogs(project, "shop")] == ["hive"]
    assert selected_catalogs(project, "shop", has_spark=False) == []


def test_an_unknown_catalog_is_named(catalog: Catalog) -> None:
    with pytest.raises(ConfigError, match="CATALOG_UNKNOWN") as raised:
        sync_pipeline(catalog, "shop", names=["ux"])
    assert "uc" in raised.value.hint


def test_the_stream_registers_tables_that_are_created_while_it_runs(catalog: Catalog, server: UnityServer) -> None:
    keeper = CatalogKeeper(
        lambda: sync_pipeline(catalog, "shop"), has_lease=lambda: True, waits=(0.01,), interval_seconds=0.05
    )
    keeper.start()
    try:
        create(catalog, "visits")
        eventually(lambda: "lake.shop.visits" in server.tables, "the table is registered")
    finally:
        keeper.close()
    assert keep_catalogs in STREAM_PARTS.companions


def test_a_stream_outlives_a_failing_synchronisation_and_stops_after_its_lease() -> None:
    passes, lost = [], threading.Event()

    def fail() -> None:
        passes.append(1)
        if len(passes) == 3:
            lost.set()
        raise OSError("away")

    keeper = CatalogKeeper(fail, has_lease=lambda: not lost.is_set(), waits=(0.0,), interval_seconds=0.01)
    keeper.start()
    keeper.join(60)
    assert not keeper.is_alive()
    assert len(passes) == 3


def test_a_stream_without_catalogs_starts_no_thread(catalog: Catalog) -> None:
    bare = replace(catalog, environment=catalog.environment.model_copy(update={"catalogs": ()}))
    before = threading.active_count()
    with kept_up(bare, "shop", has_lease=lambda: True):
        assert threading.active_count() == before


def test_diff_lists_what_differs_and_sync_makes_it_so(
    catalog: Catalog, server: UnityServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(catalog, "visits")
    monkeypatch.setattr("deltaworks.cli.catalogs.catalog", lambda: catalog)

    shown = invoke("catalogs", "diff", "shop", columns=120)
    assert shown.exit_code == 1
    assert "shop.visits" in shown.output
    assert server.tables == {}

    sync_pipeline(catalog, "shop")
    shown = invoke("catalogs", "diff", columns=120)
    assert (shown.exit_code, shown.output.strip()) == (0, "All entries are as the tables.")
