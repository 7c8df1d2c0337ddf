"""Gold: freshness against the declared age, and declared dashboards."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from deltaworks.alerts.raising import raise_alert
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.summaries.jobs import GoldVerification
from deltaworks.control.summaries.stream import BatchSummary, RecentBatches
from deltaworks.errors import ContractError
from deltaworks.gold.pinned_inputs import record_failed, record_refreshed
from tests.console_harness import ConsoleHarness, ago, console_harness
from tests.records import record_of
from tests.unit.console.summaries_harness import put_tables, table

TABLE = "events_per_hour"
DASHBOARD = """\
dashboards:
  - name: sales
    title: Sales
    panels: [{title: Events, chart: table, sql: panels/events.sql}]
"""


@pytest.fixture
def harness(project: Path) -> ConsoleHarness:
    folder = project / "include" / "pipelines" / "games"
    declared = (folder / "pipeline.yaml").read_text()
    promise = "partition_by: event_date, checks: {max_age_minutes: 30}}"
    (folder / "pipeline.yaml").write_text(declared.replace("partition_by: event_date}", promise) + DASHBOARD)
    (folder / "panels").mkdir()
    (folder / "panels" / "events.sql").write_text("SELECT * FROM events_per_hour WHERE event_date >= $from::DATE")
    return console_harness(project)


def row_of(harness: ConsoleHarness, name: str, address: str = "/gold/games") -> dict[str, object]:
    return next(row for row in harness.view(address)["listed"]["rows"] if row["name"] == name)


def write_build(harness: ConsoleHarness, name: str, seconds_ago: float) -> None:
    harness.objects.put(paths.gold_state("games", name), json.dumps({"at": ago(seconds_ago)}).encode())


def land_rows(harness: ConsoleHarness, seconds_ago: float) -> None:
    batch = record_of(BatchSummary, batch_id=1, at=ago(seconds_ago), rows=5)
    recent = RecentBatches(pipeline="games", written_at=ago(0), batches=(batch,))
    harness.objects.put(paths.recent_batches("games"), recent.encode())


@pytest.mark.parametrize("landed", [None, 29 * 60, 3 * 86_400])
def test_a_table_is_fresh_unless_landed_rows_wait_longer_than_declared(
    harness: ConsoleHarness, landed: float | None
) -> None:
    write_build(harness, TABLE, 2 * 86_400)
    if landed is not None:
        land_rows(harness, landed)

    assert row_of(harness, TABLE)["state"] == "fresh"


def test_a_stale_table_comes_first(harness: ConsoleHarness) -> None:
    write_build(harness, TABLE, 2 * 86_400)
    land_rows(harness, 31 * 60)
    shown = harness.view("/gold")["listed"]["rows"]

    assert (shown[0]["name"], shown[0]["state"]) == (TABLE, "stale")
    assert "landed rows wait for" in harness.get("/gold").text


def test_a_table_with_an_alert_shows_it_and_comes_first(harness: ConsoleHarness) -> None:
    raise_alert(harness.objects, cause="GOLD_REFRESH_FAILING", subject=f"games.{TABLE}", summary="It fails.")

    assert harness.view("/gold")["listed"]["rows"][0]["alerts"] == ["GOLD_REFRESH_FAILING"]
    assert "GOLD_REFRESH_FAILING" in harness.get("/gold/games").text


def test_rows_and_size_are_those_of_the_last_snapshot(harness: ConsoleHarness) -> None:
    put_tables(harness.objects, "games", table(TABLE, kind="gold", rows=7, bytes=99))

    assert (row_of(harness, TABLE)["rows"], row_of(harness, TABLE)["bytes"]) == (7, 99)


@pytest.mark.parametrize("torn", [b"", b"{", b"[]", b"null", b'{"at": "soon"}', b'{"at": 3}', b"\xff\xfe"])
def test_a_damaged_object_means_never_built(harness: ConsoleHarness, torn: bytes) -> None:
    harness.objects.put(paths.gold_state("games", TABLE), torn)

    assert row_of(harness, TABLE)["state"] == "never built"


def test_dashboards_are_listed_with_their_command(harness: ConsoleHarness) -> None:
    assert [row["title"] for row in harness.view("/gold/games")["dashboards"]] == ["Sales"]
    assert "deltaworks dashboard games sales --html sales.html" in harness.get("/gold").text


def test_a_person_sees_only_visible_pipelines(harness: ConsoleHarness) -> None:
    assert {row["pipeline"] for row in harness.view("/gold", by="eve")["listed"]["rows"]} <= {"edits"}
    assert harness.get("/gold/games", by="eve").status_code == 404


SQL_ERROR = ContractError("GOLD_SQL_INVALID", "gold/events_per_hour.sql:3: syntax error.", hint="Fix line 3.")


def fail_build(harness: ConsoleHarness, *, seconds_ago: float = 0.0) -> None:
    home = PipelineHome(harness.objects, "games")
    record_failed(home, TABLE, SQL_ERROR, now=utc_now() - timedelta(seconds=seconds_ago))


@pytest.mark.parametrize("built_seconds_ago", [None, 60, 31 * 60])
def test_a_table_whose_build_failed_says_since_when_and_why(
    harness: ConsoleHarness, built_seconds_ago: float | None
) -> None:
    if built_seconds_ago is not None:
        write_build(harness, TABLE, built_seconds_ago)
    fail_build(harness, seconds_ago=500)
    fail_build(harness)
    row = row_of(harness, TABLE)

    assert (row["state"], row["next_step"]) == ("failing", "Fix line 3.")
    assert row["error"] == "[GOLD_SQL_INVALID] gold/events_per_hour.sql:3: syntax error."
    failing_for = utc_now() - datetime.fromisoformat(str(row["failing_since"]))
    assert failing_for > timedelta(seconds=450), "the first failure decides since when"
    assert bool(row["fresh_at"]) == (built_seconds_ago is not None)
    assert harness.view("/gold")["listed"]["rows"][0]["name"] == TABLE
    assert "syntax error" in harness.get("/gold").text


def test_a_build_that_succeeds_ends_the_failure(harness: ConsoleHarness) -> None:
    fail_build(harness)
    record_refreshed(PipelineHome(harness.objects, "games"), TABLE)

    assert (row_of(harness, TABLE)["state"], row_of(harness, TABLE)["error"]) == ("fresh", "")


def test_a_table_that_the_stream_cannot_refresh_is_failing(harness: ConsoleHarness) -> None:
    write_build(harness, TABLE, 60)
    failure = {"table": TABLE, "condition": "GOLD_SQL_INVALID", "message": "no", "hint": "Fix.", "since": ago(90)}
    harness.write_heartbeat("games", gold_failures=(failure,))

    assert (row_of(harness, TABLE)["state"], row_of(harness, TABLE)["error"]) == ("failing", "[GOLD_SQL_INVALID] no")


def test_a_table_says_when_it_was_compared_with_its_sql_and_what_differed(harness: ConsoleHarness) -> None:
    held = GoldVerification(
        pipeline="games",
        table=TABLE,
        at=ago(60),
        reason="2026-01-03: more than 2,000 MB of input",
        verified_at={"2026-01-01": ago(86_400), "2026-01-02": ago(60)},
        differing={"2026-01-02": 3},
    )
    harness.objects.put(paths.gold_verification("games", TABLE), held.encode())

    row = row_of(harness, TABLE)
    page = harness.get("/gold/games").text

    assert (row["differing"], row["not_compared"]) == ({"2026-01-02": 3}, held.reason)
    assert "3 rows in 2026-01-02" in page
    assert held.reason in page
    assert "deltaworks gold verify games" in page


def test_a_damaged_record_of_comparisons_hides_nothing_else(harness: ConsoleHarness) -> None:
    harness.objects.put(paths.gold_verification("games", TABLE), b"{torn")

    assert row_of(harness, TABLE)["verified_at"] is None


def test_late_rows_of_frozen_dates_and_the_lag_are_shown(harness: ConsoleHarness) -> None:
    record = {"at": ago(60), "late_rows": {"2026-01-01": 30, "2026-01-02": 10}}
    harness.objects.put(paths.gold_state("games", TABLE), json.dumps(record).encode())

    page = harness.get("/gold/games").text

    assert "40 late rows of 2 frozen dates are not in it" in page
    assert row_of(harness, TABLE)["late_rows"] == {"2026-01-01": 30, "2026-01-02": 10}
    assert "lag 15m, built by the gold DAG" in page
