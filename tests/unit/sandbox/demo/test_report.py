"""The demo's report and page: what ran and failed, and the age of an object in bronze and in gold."""

from __future__ import annotations

import datetime as dt
import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ConfigError
from deltaworks.sources.objects.file_event_log import file_events_key
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.project import load_catalog, pipeline_files
from generator.games import deliveries
from generator.truth import TruthCounter
from sandbox.demo.answers import Answer
from sandbox.demo.dashboards import DashboardPage
from sandbox.demo.demo_options import ALL_PIPELINES, demo_settings, parse_pipelines
from sandbox.demo.freshness import ObjectAge, compute_freshness, object_ages
from sandbox.demo.html_report import write_report
from sandbox.demo.phases import Phase
from sandbox.demo.provenance_check import ProvenanceReport
from sandbox.demo.report import DemoReport
from sandbox.demo.run import find_edits
from tests.unit.specs.conftest import ENVIRONMENT, PIPELINE, write_project


def report(
    *,
    is_right: bool = True,
    lists: int = 1,
    unnamed: tuple[str, ...] = (),
    health: str = "healthy",
    failed: tuple[str, ...] = (),
) -> DemoReport:
    answer = Answer("games", "bookings in all", 1, 1, is_right)
    provenance = ProvenanceReport(commits=3, tables=1, runs=frozenset({"run"}), commits_without_origin=unnamed)
    page = DashboardPage("games", "kpis", panels=3, panels_with_rows=2, failed_panels=failed, path=Path("kpis.html"))
    return DemoReport(answers=[answer], provenance=provenance, landing_lists=lists, health=health, dashboards=[page])


@pytest.mark.parametrize("lists", [0, 1])
def test_a_run_is_right_where_only_the_relay_listed_the_bucket(lists: int) -> None:
    assert report(lists=lists).is_right


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (report(is_right=False), "games: bookings in all"),
        (report(lists=2), "the landing bucket was listed 2 times"),
        (report(lists=-1), "the landing bucket was listed -1 times"),
        (report(unnamed=("bronze/a 3",)), "not every commit names its pipeline, batch and run"),
        (report(health="unhealthy"), "the streams are unhealthy"),
        (report(failed=("Bookings: no such column",)), "dashboard games kpis: Bookings: no such column"),
        (DemoReport(landing_lists=0, health="healthy"), "there are no answers"),
    ],
)
def test_what_did_not_hold_is_named(broken: DemoReport, promise: str) -> None:
    assert not broken.is_right
    assert promise in broken.failures()


DAY = dt.date(2024, 3, 1)


@pytest.fixture
def connection() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("CREATE SCHEMA games")
    connection.execute("CREATE TABLE games.daily_active_users AS SELECT DATE '2024-03-01' AS event_date, 3 AS users")
    connection.execute(
        "CREATE TABLE games.retention AS SELECT DATE '2024-03-01' AS cohort_date, 1234 AS installs,"
        " 0::BIGINT AS retained_day_1, NULL::BIGINT AS retained_day_7"
    )
    return connection


def page(connection: duckdb.DuckDBPyConnection, folder: Path) -> str:
    report = DemoReport(
        answers=[Answer("games", "a <question>", 1_000, 999, False)],
        jobs=[("games__gold", 12.4)],
        phases=[Phase("ingest", 61.2, 80.7)],
        health="healthy",
    )
    tables = ["games.daily_active_users", "games.retention"]
    return write_report(connection, tables, report, folder).read_text()


def test_it_shows_answers_facts_and_seconds(connection: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    text = page(connection, tmp_path)

    assert "a &lt;question&gt;" in text
    assert "<td class=n>1,000<td class=n>999<td class=no>WRONG" in text
    assert "run of games__gold" in text
    assert '<td>ingest</td><td class="n">61</td><td class="n">81</td>' in text


def test_what_is_not_known_yet_is_no_zero(connection: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    row = '<td>2024-03-01</td><td class="n">1,234</td><td class="n">0</td><td class="n">not known yet</td>'
    assert row in page(connection, tmp_path)


def test_pipelines_that_did_not_run_are_not_there(connection: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    text = page(connection, tmp_path)

    assert "Games: daily active users" in text
    assert "Wikipedia" not in text
    assert "Engagement" not in text


GOLD = """\
gold:
  tables:
    - {name: per_minute, sql: per_minute.sql, reads: [orders], partition_by: event_date, lag: 30s}
"""
Rows = list[dict[str, Any]]


def age(landed_after: float, bronze: float, gold: float | None) -> ObjectAge:
    landed_at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=landed_after)
    return ObjectAge(landed_at, bronze, gold)


def test_percentiles_are_of_the_objects_that_are_in_gold() -> None:
    freshness = compute_freshness("shop", [age(second, 10, 20 + second) for second in range(101)])

    assert freshness is not None
    assert (freshness.objects, freshness.bronze_p95_seconds) == (101, 10)
    assert (freshness.gold_p50_seconds, freshness.gold_p95_seconds, freshness.gold_p99_seconds) == (70, 115, 119)
    assert compute_freshness("shop", [age(0, 10, None)]) is None
    assert compute_freshness("shop", []) is None


def test_what_landed_while_streams_were_starting_can_be_left_out() -> None:
    ages = [age(0, 90, 200), age(119, 80, 100), age(120, 5, 30), age(130, 5, 30)]

    steady = compute_freshness("shop", ages, start_seconds=120)

    assert steady is not None
    assert (steady.objects, steady.bronze_p99_seconds, steady.gold_p99_seconds) == (2, 5, 30)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = write_project(
        tmp_path / "project",
        environment=ENVIRONMENT.replace("file:///lake", f"file://{tmp_path}/lake"),
        pipeline=PIPELINE.replace("max_bytes", "prefix: shop/\n  max_bytes") + GOLD,
    )
    (root / "include" / "pipelines" / "shop" / "per_minute.sql").write_text("SELECT event_date FROM orders")
    return root


def test_an_object_is_as_old_as_the_batch_and_the_build_that_took_it(project: Path, tmp_path: Path) -> None:
    catalog, now = load_catalog(root=project), utc_now()

    def write(key: str, rows: Rows, **metadata: Any) -> None:
        properties = CommitProperties(custom_metadata={"userMetadata": user_metadata(**metadata)}) if metadata else None
        table = pa.Table.from_pylist(rows)
        write_deltalake(f"{tmp_path}/lake/{key}", table, mode="append", commit_properties=properties)

    landed = {1: "shop/a", 2: "shop/b", 3: "other/c", 4: "shop/d", 5: "shop/e"}
    at = {seq: now - dt.timedelta(seconds=100 - 10 * seq) for seq in landed}
    write(file_events_key("landing"), [{"seq": seq, "key": key, "event_time": at[seq]} for seq, key in landed.items()])
    # Batch 1 has brought nothing for the table, so that what it took is there since batch 0.
    batches = [(0, 1, 2, 7), (1, 3, 4, None)]
    write(
        paths.pipeline_control("shop", "checkpoint_store"),
        [
            {
                "batch_id": batch,
                "completed_at": now - dt.timedelta(seconds=40 - 10 * batch),
                "source_metadata": json.dumps({"first_seq": first, "last_seq": last}),
            }
            for batch, first, last, _ in batches
        ],
    )
    write(
        paths.pipeline_control("shop", "batch_metadata_store"),
        [{"batch_id": batch, "table_name": "orders", "delta_version": v} for batch, *_, v in batches if v is not None],
    )
    assert object_ages(catalog, "shop") == [], "gold is not there yet"
    for read in (6, 7, 8):
        built = {"pipeline": "shop", "batch": read, "operation": "gold", "built_from": {"orders": read}}
        write(paths.table("shop", "per_minute"), [{"event_date": now.date()}], **built)

    ages = object_ages(catalog, "shop")

    assert [(one.landed_at, one.bronze_seconds) for one in ages] == [(at[1], 50.0), (at[2], 40.0), (at[4], 30.0)]
    in_gold = [one.gold_seconds for one in ages]
    assert all(seconds is not None for seconds in in_gold)
    assert in_gold[0] - in_gold[1] == pytest.approx(10, abs=0.01)  # type: ignore[operator]
    assert 90 <= in_gold[0] <= 150  # type: ignore[operator]


def test_without_a_file_of_real_events_the_edits_pipeline_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "checkout").mkdir()
    edits = find_edits(tmp_path / "checkout", None)

    assert edits is None
    assert demo_settings(edits).data_settings.pipelines == ("engagement", "games", "mobile")


def test_a_file_or_the_first_of_a_folder_is_replayed(tmp_path: Path) -> None:
    for name in ("b.json", "a.json.gz", "notes.txt"):
        (tmp_path / name).touch()

    assert find_edits(tmp_path, tmp_path / "b.json") == tmp_path / "b.json"
    assert find_edits(tmp_path, tmp_path) == tmp_path / "a.json.gz"
    assert demo_settings(tmp_path / "b.json").data_settings.pipelines == ("edits", "engagement", "games", "mobile")


def test_engagement_can_be_left_out(tmp_path: Path) -> None:
    assert demo_settings(None, activities=0).data_settings.pipelines == ("games", "mobile")


@pytest.mark.parametrize(
    ("text", "pipelines"),
    [
        ("", ("edits", "engagement", "games", "mobile")),
        ("revenue", ("games", "revenue")),
        ("cdn_logs", ("cdn_logs",)),
        ("video_qos", ("cdn_logs", "video_qos")),
        ("stocks, games", ("filings", "games", "stocks")),
        ("video_qos,cdn_logs,stocks,filings", ("cdn_logs", "filings", "stocks", "video_qos")),
    ],
)
def test_pipelines_are_run_when_they_are_named_with_those_they_read(text: str, pipelines: tuple[str, ...]) -> None:
    assert parse_pipelines(text) == pipelines
    if text:
        assert demo_settings(None, pipelines=parse_pipelines(text)).data_settings.pipelines == pipelines


def test_every_shipped_pipeline_has_its_place_in_the_demo(tmp_path: Path) -> None:
    # Real-time logs are generated for rules alone: `generator.alert_traffic`.
    shipped = tuple(sorted({*pipeline_files(PROJECT_ROOT)} - {"cdn_realtime"}))

    assert tuple(sorted(ALL_PIPELINES)) == shipped
    assert demo_settings(tmp_path, pipelines=ALL_PIPELINES).data_settings.pipelines == shipped


def test_generated_events_are_those_of_the_last_days() -> None:
    settings = demo_settings(None, pipelines=ALL_PIPELINES, until=date(2026, 3, 11))

    assert settings.games is not None
    assert settings.engagement is not None
    assert settings.viewers is not None
    assert settings.market is not None
    # A day remains for what devices send again; days of play are complete.
    assert (settings.games.start_date, settings.games.days) == (date(2026, 3, 1), 9)
    assert settings.engagement.start_date == date(2026, 3, 1)
    assert settings.viewers.start == datetime(2026, 3, 9, 23, 30, tzinfo=UTC)
    assert settings.market.last == date(2026, 3, 10)
    assert demo_settings(None, until=date(2026, 3, 11)) == demo_settings(None, until=date(2026, 3, 11))


def test_no_event_of_a_demo_is_later_than_its_date() -> None:
    settings = demo_settings(None, until=date(2026, 3, 11), game_events=3_000).games
    assert settings is not None
    counter = TruthCounter(settings)

    for _ in deliveries(settings, counter):
        pass

    dates = {hour.date() for hour, _ in counter.truth().delivered_per_hour}
    assert min(dates) == date(2026, 3, 1)
    assert max(dates) < date(2026, 3, 11)


def test_a_pipeline_that_the_demo_has_no_events_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'stocks'"):
        parse_pipelines("stock")
