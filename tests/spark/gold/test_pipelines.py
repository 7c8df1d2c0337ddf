"""The gold SQL of the shipped pipelines on small bronze tables with known results."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from deltaworks.gold.build import rebuild_gold
from deltaworks.specs.catalog import project_root

START = dt.datetime(2025, 3, 1, 12, 30, tzinfo=dt.UTC)
DATE, HOUR = START.date(), START.replace(minute=0)


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
    return {"event_time": START + dt.timedelta(days=day), **more}


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
    # A purchase's envelope has its country; that of p2 has not landed.
    events.append(at(0, event_id="p1", event_name="purchase", device_id="a", country="DE"))
    project.append("games", "events", [row for row in events if row["event_id"] not in ("a1", "z8")])
    project.append("games", "install", [at(0, event_id=f"i{device}", device_id=device) for device in "abc"])
    bought = [("p1", "4.99"), ("p2", "0.50"), ("p1", "4.99")]
    project.append("games", "purchase", [at(0, event_id=id_, amount=Decimal(amount)) for id_, amount in bought])
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
