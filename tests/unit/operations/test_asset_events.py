"""Events of Airflow's assets from a stream's process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError

from deltaworks.control import paths
from deltaworks.operations import asset_events as module
from deltaworks.operations.asset_events import AnnouncerThread, AssetAnnouncer, announced_tables, asset_events
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.descriptions import TableDescription
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.descriptions import describe_table
from deltaworks.tables.lake import Lake
from deltaworks.testing import append_rows, catalog_of, present
from tests.http_server import HttpAnswer, HttpRequest, http_server
from tests.unit.tables.test_query import MUTABLE
from tests.waiting import eventually

VISITS, REQUESTS = "bronze.shop.visits", "bronze.shop.requests"


@dataclass
class Airflow:
    """An Airflow that knows the asset of `visits`, and records events."""

    known: dict[str, int] = field(default_factory=lambda: {VISITS: 7})
    events: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    away: bool = False

    def assets(self, pattern: str) -> Mapping[str, int]:
        return {name: number for name, number in self.known.items() if pattern in name}

    def create_asset_event(self, asset_id: int, extra: Mapping[str, Any]) -> None:
        if self.away:
            raise OSError("no answer")
        self.events.append((asset_id, dict(extra)))


@dataclass
class Clock:
    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return catalog_of(tmp_path, MUTABLE)


@pytest.fixture
def airflow() -> Airflow:
    return Airflow()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def announcer(catalog: Catalog, airflow: Airflow, clock: Clock) -> AssetAnnouncer:
    """An announcer that is created after the table has a row."""
    append(catalog, 1)
    return announce_from_now(catalog, airflow, clock)


def announce_from_now(catalog: Catalog, airflow: Airflow, clock: Clock) -> AssetAnnouncer:
    # Commits record milliseconds.
    time.sleep(0.002)
    return AssetAnnouncer(catalog, "shop", lambda: airflow, every_seconds=60, clock=clock)


def append(catalog: Catalog, number: int, name: str = "visits") -> None:
    append_rows(Lake(catalog.environment.lake), paths.table("shop", name), pa.table({"id": ["a"]}), number=number)


def test_rows_that_were_there_before_are_not_announced(announcer: AssetAnnouncer) -> None:
    assert announcer.announce() == []
    assert announcer.announce() == []


def test_new_rows_are_announced_with_their_version(
    catalog: Catalog, announcer: AssetAnnouncer, airflow: Airflow
) -> None:
    announcer.announce()
    append(catalog, 2)

    assert announcer.announce() == [VISITS]
    assert airflow.events == [(7, {"pipeline": "shop", "table": "visits", "version": 2})]


def test_rows_before_the_first_look_are_announced(catalog: Catalog, announcer: AssetAnnouncer) -> None:
    append(catalog, 2)
    assert announcer.announce() == [VISITS]


def test_a_table_that_the_stream_creates_is_announced(catalog: Catalog, airflow: Airflow, clock: Clock) -> None:
    announcer = announce_from_now(catalog, airflow, clock)
    assert announcer.announce() == []
    append(catalog, 1)
    assert announcer.announce() == [VISITS]


def test_a_table_is_announced_at_most_once_a_minute_and_then_with_all_its_commits(
    catalog: Catalog, announcer: AssetAnnouncer, airflow: Airflow, clock: Clock
) -> None:
    for number in range(2, 7):
        append(catalog, number)
        announcer.announce()
        clock.seconds += 10
    assert [extra["version"] for _, extra in airflow.events] == [2]

    clock.seconds += 20
    assert announcer.announce() == [VISITS]
    assert [extra["version"] for _, extra in airflow.events] == [2, 6]
    assert announcer.announce(now_due=True) == []


def test_a_commit_without_rows_is_not_announced(catalog: Catalog, announcer: AssetAnnouncer) -> None:
    announcer.announce()
    lake, key = Lake(catalog.environment.lake), paths.table("shop", "visits")
    description = TableDescription(text="Visits", columns={"id": "Id"})
    assert describe_table(lake, key, present(lake.open(key)), description, user_metadata="{}")

    assert announcer.announce() == []


def test_tables_that_no_dag_names_are_not_announced(
    catalog: Catalog, announcer: AssetAnnouncer, airflow: Airflow, clock: Clock
) -> None:
    announcer.announce()
    append(catalog, 1, "requests")
    assert announcer.announce() == []

    airflow.known[REQUESTS] = 8
    clock.seconds += 600
    announcer.announce()
    append(catalog, 2, "requests")
    clock.seconds += 600
    assert announcer.announce() == [REQUESTS]


def test_an_event_that_airflow_did_not_take_is_created_by_the_next_look(
    catalog: Catalog, announcer: AssetAnnouncer, airflow: Airflow
) -> None:
    announcer.announce()
    append(catalog, 2)
    airflow.away = True
    with pytest.raises(OSError, match="no answer"):
        announcer.announce()

    airflow.away = False
    assert announcer.announce() == [VISITS]


def test_a_table_that_cannot_be_read_holds_back_no_other(
    catalog: Catalog, airflow: Airflow, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    airflow.known[REQUESTS] = 8
    announcer = announce_from_now(catalog, airflow, clock)
    append(catalog, 1)
    append(catalog, 1, "requests")
    log = next(Path(catalog.environment.lake.prefix).rglob("visits/_delta_log/*.json"))
    log.write_text("damaged")

    with pytest.raises(DeltaError):
        announcer.announce()
    assert [asset for asset, _ in airflow.events] == [8]
    assert "table=visits was not announced" in caplog.text

    caplog.clear()
    with pytest.raises(DeltaError):
        announcer.announce()
    assert "was not announced" not in caplog.text, "an outage is told once"


def test_gold_that_the_stream_builds_is_announced_and_other_gold_is_not() -> None:
    gold = {"name": "fresh", "sql": "fresh.sql", "reads": ("visits",), "partition_by": "event_date"}
    tables = [{**gold, "lag": "30s"}, {**gold, "name": "nightly"}]
    declared = MUTABLE.model_dump(mode="json") | {"gold": {"tables": tables}}
    announced = announced_tables(PipelineSpec.model_validate(declared))

    assert announced["fresh"] == "gold"
    assert "nightly" not in announced


def test_the_thread_outlives_an_airflow_that_is_away_and_announces_the_last_rows_when_it_ends(
    catalog: Catalog, announcer: AssetAnnouncer, airflow: Airflow
) -> None:
    airflow.away = True
    thread = AnnouncerThread(announcer, has_lease=lambda: True, look_seconds=0.01)
    thread.start()
    append(catalog, 2)
    airflow.away = False
    eventually(lambda: len(airflow.events) == 1, "the first rows are announced")
    append(catalog, 3)
    thread.close()

    assert [extra["version"] for _, extra in airflow.events] == [2, 3]


def test_a_stream_without_its_lease_announces_nothing(
    catalog: Catalog, announcer: AssetAnnouncer, airflow: Airflow
) -> None:
    thread = AnnouncerThread(announcer, has_lease=lambda: False, look_seconds=0.01)
    append(catalog, 2)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert airflow.events == []


def test_a_stream_without_a_login_to_airflow_starts_no_thread(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_DELTAWORKS_AIRFLOW", raising=False)
    before = threading.active_count()
    with asset_events(catalog, "shop", has_lease=lambda: True):
        assert threading.active_count() == before


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Airflow's API with two pages of assets; yields the bodies of created events."""
    created: list[dict[str, Any]] = []

    def answer(request: HttpRequest) -> HttpAnswer:
        if request.path.endswith("/auth/token"):
            return 201, {"access_token": "token"}
        if request.path.startswith("/api/v2/assets/events"):
            created.append(request.json())
            return 200, {"id": len(created)}
        assert "name_pattern=.shop." in request.path
        known = [] if "offset=1" in request.path else [{"id": 7, "name": VISITS}]
        return 200, {"assets": known, "total_entries": 1}

    with http_server(answer) as url:
        monkeypatch.setenv("AIRFLOW_CONN_DELTAWORKS_AIRFLOW", f"http://admin:secret@{url.removeprefix('http://')}")
        yield created


def test_events_reach_airflows_api(
    catalog: Catalog, server: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.05)
    with asset_events(catalog, "shop", has_lease=lambda: True):
        append(catalog, 1)
    assert server == [{"asset_id": 7, "extra": {"pipeline": "shop", "table": "visits", "version": 1}}]
