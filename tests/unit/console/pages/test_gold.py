"""Gold: fresh or stale against its promise, and the dashboards that a pipeline declares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deltaworks.alerts.raising import raise_alert
from deltaworks.control import paths
from tests.console_stage import ConsoleStage, ago, console_stage
from tests.unit.console.summaries_stage import put_tables, table

TABLE = "events_per_hour"
DASHBOARD = """\
dashboards:
  - name: sales
    title: Sales
    panels: [{title: Events, chart: table, sql: panels/events.sql}]
"""


@pytest.fixture
def stage(project: Path) -> ConsoleStage:
    folder = project / "include" / "pipelines" / "games"
    declared = (folder / "pipeline.yaml").read_text()
    promise = "partition_by: event_date, checks: {max_age_minutes: 30}}"
    (folder / "pipeline.yaml").write_text(declared.replace("partition_by: event_date}", promise) + DASHBOARD)
    (folder / "panels").mkdir()
    (folder / "panels" / "events.sql").write_text("SELECT * FROM events_per_hour WHERE event_date >= $from::DATE")
    return console_stage(project)


def row_of(stage: ConsoleStage, name: str, address: str = "/gold/games") -> dict[str, object]:
    return next(row for row in stage.view(address)["listed"]["rows"] if row["name"] == name)


def built(stage: ConsoleStage, name: str, seconds_ago: float) -> None:
    stage.objects.put(paths.gold_state("games", name), json.dumps({"at": ago(seconds_ago)}).encode())


def test_a_table_within_its_promise_is_fresh_and_beyond_it_stale(stage: ConsoleStage) -> None:
    built(stage, TABLE, 29 * 60)

    assert row_of(stage, TABLE)["state"] == "fresh"


def test_a_stale_table_comes_first(stage: ConsoleStage) -> None:
    built(stage, TABLE, 31 * 60)
    shown = stage.view("/gold")["listed"]["rows"]

    assert (shown[0]["name"], shown[0]["state"]) == (TABLE, "stale")
    assert "stale" in stage.get("/gold").text


def test_an_alert_of_a_table_stands_beside_it_and_it_comes_first(stage: ConsoleStage) -> None:
    raise_alert(stage.objects, cause="GOLD_REFRESH_FAILING", subject=f"games.{TABLE}", summary="It fails.")

    assert stage.view("/gold")["listed"]["rows"][0]["alerts"] == ["GOLD_REFRESH_FAILING"]
    assert "GOLD_REFRESH_FAILING" in stage.get("/gold/games").text


def test_rows_and_size_are_those_of_the_last_snapshot(stage: ConsoleStage) -> None:
    put_tables(stage.objects, "games", table(TABLE, kind="gold", rows=7, bytes=99))

    assert (row_of(stage, TABLE)["rows"], row_of(stage, TABLE)["bytes"]) == (7, 99)


@pytest.mark.parametrize("torn", [b"", b"{", b"[]", b"null", b'{"at": "soon"}', b'{"at": 3}', b"\xff\xfe"])
def test_a_torn_object_is_a_table_that_was_never_built(stage: ConsoleStage, torn: bytes) -> None:
    stage.objects.put(paths.gold_state("games", TABLE), torn)

    assert row_of(stage, TABLE)["state"] == "never built"


def test_dashboards_are_listed_with_the_command_that_draws_them(stage: ConsoleStage) -> None:
    assert [row["title"] for row in stage.view("/gold/games")["dashboards"]] == ["Sales"]
    assert "deltaworks dashboard games sales --html sales.html" in stage.get("/gold").text


def test_somebody_sees_what_they_may_see(stage: ConsoleStage) -> None:
    assert {row["pipeline"] for row in stage.view("/gold", by="eve")["listed"]["rows"]} <= {"edits"}
    assert stage.get("/gold/games", by="eve").status_code == 404
