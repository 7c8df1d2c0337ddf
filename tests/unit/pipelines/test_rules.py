"""Every shipped rule runs on tables as declared; streams refresh gold whose changes stay near an event's time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import duckdb
import pytest

from deltaworks.rules.evaluation import minute_of
from deltaworks.rules.rule_query import rule_query
from deltaworks.specs.alert_rule import RuleSpec
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.gold import AffectsSpec, GoldTableSpec
from deltaworks.specs.loading import load_spec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from deltaworks.tables.arrow_types import arrow_schema

CATALOG = load_catalog("local", root=PROJECT_ROOT)
RULES = [(name, rule) for name, spec in CATALOG.pipelines.items() for rule in spec.rules]
#: What gold is made of that no declaration says the types of.
GOLD = {
    "events_per_hour": {"event_date": "date", "hour": "timestamp", "event_name": "string", "events": "long"},
    "bookings_per_hour": {"event_date": "date", "hour": "timestamp", "bookings": "decimal(18,2)", "purchases": "long"},
    "qos_minute": {
        "event_date": "date",
        "minute": "timestamp",
        "isp": "string",
        "played_ms": "long",
        "stalled_ms": "long",
    },
    "cdn_minute": {
        "event_date": "date",
        "minute": "timestamp",
        "cdn": "string",
        "errors_5xx": "long",
        "answered": "long",
    },
    "latency_histogram": {
        "event_date": "date",
        "minute": "timestamp",
        "cdn": "string",
        "bucket": "int",
        "media_hits": "long",
    },
    "pe_daily": {"price_date": "date", "ticker": "string", "annual_filed": "date"},
}
START = dt.datetime(2026, 3, 2, 10, tzinfo=dt.UTC)


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as opened:
        opened.execute("SET TimeZone = 'UTC'")
        yield opened


def columns_of(spec: PipelineSpec, table: str) -> dict[str, str]:
    bronze = {item.name: item.column_types() for item in spec.tables}
    references = {item.name: item.column_types() for item in spec.references}
    return {**bronze, **references, **GOLD}[table]


@pytest.mark.parametrize(("pipeline", "rule"), RULES, ids=lambda item: getattr(item, "name", item))
def test_a_shipped_rule_can_be_asked(pipeline: str, rule: RuleSpec, connection: duckdb.DuckDBPyConnection) -> None:
    spec = CATALOG.pipeline(pipeline)
    for table in rule.reads:
        connection.register(table, arrow_schema(columns_of(spec, table)).empty_table())
    query = rule_query(rule, (CATALOG.folder(pipeline) / rule.sql).read_text(), connection)
    first = minute_of(START) // rule.step_minutes * rule.step_minutes

    (observed,) = query.read_minutes(connection, first, first)

    assert (observed.minute, list(observed.rows), observed.width) == (first, [], 0)
    assert rule.description


def test_every_pipeline_that_people_watch_ships_rules() -> None:
    assert {name for name, _ in RULES} == {"cdn_logs", "engagement", "games", "stocks", "video_qos"}


def test_a_split_is_no_jump_and_a_fall_is(connection: duckdb.DuckDBPyConnection) -> None:
    spec = CATALOG.pipeline("stocks")
    rule = {item.name: item for item in spec.rules}["price_jump"]
    for table in rule.reads:
        connection.register(f"empty_{table}", arrow_schema(columns_of(spec, table)).empty_table())
        connection.execute(f"CREATE TABLE {table} AS SELECT * FROM empty_{table}")
    closes = [("A", 2, 100), ("A", 3, 51), ("B", 2, 100), ("B", 3, 80), ("B", 3, 79)]
    for seq, (ticker, day, close) in enumerate(closes):
        connection.execute(
            "INSERT INTO prices BY NAME SELECT ? AS ticker, make_date(2026, 3, ?) AS event_date, ? AS close, "
            "make_timestamptz(2026, 3, 4, 0, 0, 0) AS _ingested_at, ? AS _seq, 0 AS _position",
            [ticker, day, close, seq],
        )
    connection.execute("INSERT INTO splits VALUES ('A', DATE '2026-03-03', 2)")
    query = rule_query(rule, (CATALOG.folder("stocks") / rule.sql).read_text(), connection)
    day = minute_of(dt.datetime(2026, 3, 3, tzinfo=dt.UTC))

    (observed,) = query.read_minutes(connection, day, day)

    assert {item.labels: round(item.value or 0, 6) for item in observed.rows} == {("A",): 0.02, ("B",): 0.21}


FOLDER = PROJECT_ROOT / "include" / "pipelines"
PIPELINES = {path.parent.name: load_spec(PipelineSpec, path) for path in sorted(FOLDER.glob("*/pipeline.yaml"))}
#: Of the game's model, which is trained by the week and predicts for Sundays.
OF_A_MODEL = {"player_days", "player_features", "player_scores"}


def is_near(table: GoldTableSpec) -> bool:
    """Whether a change of a date or an hour of any input changes nothing beyond it."""
    return isinstance(table.affects, AffectsSpec) and (table.affects.days, table.affects.hours) in (
        ((0,), ()),
        ((0,), (0,)),
    )


def test_the_game_builds_all_of_its_gold_that_is_near_beside_the_stream() -> None:
    games = PIPELINES["games"]
    near = {table.name for table in games.gold.tables if is_near(table)} - OF_A_MODEL

    assert {table.name for table in games.gold.stream_refreshed_tables} == near
    assert {"events_per_hour", "daily_active_users", "bookings_per_hour", "bookings_per_country"} == near
    assert all((table.refresh_seconds or 90) <= 30 for table in games.gold.stream_refreshed_tables), (
        "a third of what is promised"
    )


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_no_stream_builds_what_takes_in_a_history(pipeline: str) -> None:
    for table in PIPELINES[pipeline].gold.stream_refreshed_tables:
        assert is_near(table), f"{table.name} is left to the schedule"


def test_what_streams_do_not_build_has_a_schedule() -> None:
    for name, pipeline in PIPELINES.items():
        left = [table.name for table in pipeline.gold.tables if table.refresh_seconds is None]
        assert (
            not left or pipeline.gold.schedule or pipeline.gold.cross_pipeline_inputs or pipeline.maintenance.schedule
        ), name
    assert PIPELINES["games"].gold.schedule
    assert [table.name for table in PIPELINES["engagement"].gold.stream_refreshed_tables] == []
