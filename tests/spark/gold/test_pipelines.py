"""The shipped pipelines' gold on small bronze tables with known results, also refreshed by the stream."""

from __future__ import annotations

import datetime as dt
import threading
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.gold.build import rebuild_gold
from deltaworks.gold.refresh_loop import GoldRefreshLoop
from deltaworks.specs.catalog import PROJECT_ROOT, project_root
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history
from deltaworks.testing import declare_pipeline, declare_table, present
from tests.spark.gold.shop_data import START

HALF_PAST_NOON = dt.datetime(2025, 3, 1, 12, 30, tzinfo=dt.UTC)
DATE, HOUR = HALF_PAST_NOON.date(), HALF_PAST_NOON.replace(minute=0)


@pytest.fixture
def project(make_project: Callable[..., Any]) -> Any:
    folder = project_root() / "include" / "pipelines"
    found = {}
    for path in sorted(folder.glob("*/pipeline.yaml")):
        files = [*path.parent.glob("*/*.sql"), *path.parent.glob("reference/*.csv")]
        texts = {str(file.relative_to(path.parent)): file.read_text() for file in sorted(files)}
        found[path.parent.name] = (path.read_text(), texts)
    relays = [yaml.safe_load(path.read_text()) for path in (folder.parent / "relays").glob("*.yaml")]
    return make_project(found, relays=relays)


def at(day: float, **more: Any) -> dict[str, Any]:
    return {"event_time": HALF_PAST_NOON + dt.timedelta(days=day), **more}


def answer(project: Any, pipeline: str, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[column] for column in columns) for row in project.rows(pipeline, table))


def test_games_gold_is_exact_after_duplicates_and_late_events(spark: SparkSession, project: Any) -> None:
    # z has no installation; its events show that earlier days are complete.
    devices = {"a": (0, 1, 7), "b": (0, 7), "c": (0,), "z": (2, 8)}
    events = [
        at(day, event_id=f"{device}{day}", event_name="session_start", device_id=device)
        for device, days in devices.items()
        for day in days
    ]
    events.append(at(0, event_id="p1", event_name="purchase", device_id="a"))
    project.append("games", "events", [row for row in events if row["event_id"] not in ("a1", "z8")])
    project.append("games", "install", [at(0, event_id=f"i{device}", device_id=device) for device in "abc"])
    bought = [("p1", "4.99", "DE"), ("p2", "0.50", None), ("p1", "4.99", "DE")]
    project.append(
        "games",
        "purchase",
        [at(0, event_id=id_, amount=Decimal(amount), country=country) for id_, amount, country in bought],
    )
    rebuild_gold(spark, project.catalog, "games")
    before = answer(project, "games", "retention", "cohort_date", "installs", "retained_day_1", "retained_day_7")
    late = [row for row in events if row["event_id"] in ("a1", "z8")]
    project.append("games", "events", [*late, events[0]])

    result = rebuild_gold(spark, project.catalog, "games")

    assert before == [(DATE, 3, 0, None)]
    assert answer(project, "games", "retention", "cohort_date", "installs", "retained_day_1", "retained_day_7") == [
        (DATE, 3, 1, 2)
    ]
    assert answer(project, "games", "bookings_per_hour", "hour", "bookings") == [(HOUR, Decimal("5.49"))]
    assert answer(project, "games", "bookings_per_country", "country", "bookings", "purchases") == [
        ("??", Decimal("0.50"), 1),
        ("DE", Decimal("4.99"), 1),
    ]
    users = answer(project, "games", "daily_active_users", "event_date", "users")
    assert users == [(DATE + dt.timedelta(days=day), count) for day, count in ((0, 3), (1, 1), (2, 1), (7, 2), (8, 1))]
    assert sum(row["events"] for row in project.rows("games", "events_per_hour")) == len(events)
    assert result.table("bookings_per_hour").skipped
    assert result.table("daily_active_users").duplicates_dropped == 1


def test_edits_gold_counts_every_edit(spark: SparkSession, project: Any) -> None:
    made = [("u1", "x", 5), ("u1", "x", 7), ("u2", "y", 0)]
    project.append("edits", "edits", [at(0, user_name=user, page=page, added=added) for user, page, added in made])

    rebuild_gold(spark, project.catalog, "edits")

    assert answer(project, "edits", "edits_per_hour", "hour", "edits", "users", "added") == [(HOUR, 3, 2, 12)]
    assert answer(project, "edits", "top_pages", "rank", "page", "edits") == [(1, "x", 2), (2, "y", 1)]
    assert answer(project, "edits", "edits_totals", "event_date", "edits", "users") == [(DATE, 3, 2)]


def test_every_pipeline_builds_without_inputs(spark: SparkSession, project: Any) -> None:
    for pipeline in project.catalog.pipelines:
        result = rebuild_gold(spark, project.catalog, pipeline)

        # Tables over reference tables only are built without rows.
        assert all(table.skipped or table.rows == 0 for table in result.tables)


FOLDER = PROJECT_ROOT / "include" / "pipelines" / "games"
GOLD = yaml.safe_load((FOLDER / "pipeline.yaml").read_text())["gold"]
REFRESHED = [table for table in GOLD["tables"] if "lag" in table]
DECLARED = declare_pipeline(
    declare_table("events", *(f"{name} string" for name in ("device_id", "country"))),
    declare_table("purchase", "country string", "amount decimal(10,2)", when="purchase"),
    pipeline="games",
    event={"name": {"path": "name"}, "time": {"path": "time"}, "id": "id"},
    gold={"dedupe": GOLD["dedupe"], "tables": REFRESHED},
)


def sent(hours: float, event_id: str, device: str, country: str = "DE") -> dict[str, Any]:
    time = START + dt.timedelta(hours=hours)
    return {"event_id": event_id, "event_time": time, "device_id": device, "country": country}


def paid(hours: float, event_id: str, amount: str, country: str) -> dict[str, Any]:
    return {**sent(hours, event_id, "", country), "amount": Decimal(amount)}


def built_by(games: Any, table: str) -> list[str]:
    """Returns what computed each version of a gold table, the newest first."""
    lake, key = Lake(games.catalog.environment.lake), paths.table("games", table)
    history = commit_history(lake, key, newest=present(lake.open(key)).version())
    return [commit.metadata["engine"] for commit in history if "engine" in commit.metadata]


def contents(games: Any) -> dict[str, Counter[tuple[Any, ...]]]:
    return {
        table["name"]: Counter(tuple(row.values()) for row in games.rows("games", table["name"])) for table in REFRESHED
    }


@pytest.mark.integration
def test_a_refresh_round_builds_the_same_tables_as_the_dag(
    spark: SparkSession, make_project: Callable[..., Any]
) -> None:
    sql = {table["sql"]: (FOLDER / table["sql"]).read_text() for table in REFRESHED}
    games = make_project({"games": (yaml.safe_dump(DECLARED), sql)})
    reports: list[Any] = []
    loop = GoldRefreshLoop(
        spark,
        games.catalog,
        "games",
        pool="gold",
        holds_lease=lambda: True,
        committed=threading.Event(),
        report_failures=reports.append,
    )

    def look() -> None:
        loop._next_refresh_at = dict.fromkeys(loop._next_refresh_at, 0.0)
        loop.refresh_due_tables(spark)

    games.append("games", "events", [sent(1, "e1", "d1"), sent(2, "e2", "d2", "FR"), sent(30, "e3", "d1")])
    games.append("games", "purchase", [paid(2, "e2", "3.50", "FR")])
    look()
    # A duplicate a day later, and a late event of the first date.
    games.append("games", "purchase", [paid(26, "e2", "3.50", "FR"), paid(27, "e4", "1.25", "IT")])
    look()
    games.append("games", "events", [sent(26, "e2", "d2", "FR"), sent(27, "e4", "d3", "IT"), sent(1.5, "e5", "d3")])
    look()

    engines = {table["name"]: built_by(games, table["name"]) for table in REFRESHED}
    assert {name: by[-1] for name, by in engines.items()} == dict.fromkeys(engines, "Spark"), "the first build"
    assert {engine for by in engines.values() for engine in by[:-1]} == {"partial sums"}
    by_stream = contents(games)
    assert sum(by_stream["bookings_per_country"].values()) == 2
    assert sum(row[-1] * count for row, count in by_stream["events_per_hour"].items()) == 5, "and no copy"
    rebuild_gold(spark, games.catalog, "games", full=True)
    assert contents(games) == by_stream
    assert reports == []
