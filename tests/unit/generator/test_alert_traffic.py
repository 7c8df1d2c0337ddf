"""Traffic of the benchmark of rules has its incident where it is declared, and nothing before it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import duckdb
import pytest

from generator.alert_traffic import INCIDENTS, AlertTraffic, first_bad_time

FIRST = dt.datetime(2026, 3, 2, 12, tzinfo=dt.UTC)
AT = FIRST + dt.timedelta(seconds=70)
MINUTES = 3


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as opened:
        opened.execute("SET TimeZone = 'UTC'")
        yield opened


def rows(connection: duckdb.DuckDBPyConnection, sql: str) -> list[tuple[Any, ...]]:
    return connection.execute(sql).fetchall()


@pytest.mark.parametrize("rule", INCIDENTS)
def test_the_incident_of_a_rule_is_in_its_time_and_labels_alone(
    rule: str, connection: duckdb.DuckDBPyConnection
) -> None:
    traffic = AlertTraffic(world=INCIDENTS[rule], seed=3, events_per_minute=8_000, incident=rule, incident_at=AT)
    traffic.generate(connection, FIRST, MINUTES)
    labels = {name: value for name, value in traffic.expected_labels.items() if name != "experiment"}
    where = " AND ".join(["is_bad", *(f"{name} = '{value}'" for name, value in labels.items())])

    assert rows(connection, f"SELECT count(*) > 0 FROM traffic WHERE {where}") == [(True,)]
    assert rows(connection, f"SELECT count(*) FROM traffic WHERE is_bad AND NOT ({where})") == [(0,)]
    began_at = first_bad_time(connection, traffic.world)
    assert began_at is not None
    assert AT <= began_at < FIRST + dt.timedelta(minutes=MINUTES)

    replace(traffic, incident="").generate(connection, FIRST, MINUTES)
    assert rows(connection, "SELECT count(*) FROM traffic WHERE is_bad OR is_removed") == [(0,)]


def test_the_same_seed_gives_the_same_rows_and_another_gives_others(connection: duckdb.DuckDBPyConnection) -> None:
    def digest(seed: int) -> Any:
        AlertTraffic(world="games", seed=seed, events_per_minute=2_000).generate(connection, FIRST, 1)
        return rows(connection, "SELECT count(*), bit_xor(hash(traffic)) FROM traffic")

    assert digest(1) == digest(1) != digest(2)


def test_minutes_can_be_generated_apart(connection: duckdb.DuckDBPyConnection) -> None:
    traffic = AlertTraffic(world="video_qos", seed=1, events_per_minute=2_000)
    traffic.generate(connection, FIRST, 3)
    together = rows(connection, "SELECT bit_xor(hash(traffic)) FROM traffic WHERE event_time >= '2026-03-02 12:02+00'")
    traffic.generate(connection, FIRST + dt.timedelta(minutes=2), 1)

    assert rows(connection, "SELECT bit_xor(hash(traffic)) FROM traffic") == together


def test_traffic_is_spread_evenly_and_has_the_shares_of_events(connection: duckdb.DuckDBPyConnection) -> None:
    AlertTraffic(world="games", seed=1, events_per_minute=20_000).generate(connection, FIRST, 2)
    ((events, purchases, crashes, first, last),) = rows(
        connection,
        "SELECT count(*), count(*) FILTER (event_name = 'purchase') / count(*), "
        "count(*) FILTER (event_name = 'crash') / count(*), min(event_time), max(event_time) FROM traffic",
    )

    assert events == pytest.approx(2 * 20_000 * 0.93, rel=0.1)
    assert purchases == pytest.approx(0.0022, rel=0.4)
    assert crashes == pytest.approx(0.0016, rel=0.4)
    assert first - FIRST < dt.timedelta(seconds=1)
    assert FIRST + dt.timedelta(minutes=2) - last < dt.timedelta(seconds=1)


def test_a_dark_game_has_no_events(connection: duckdb.DuckDBPyConnection) -> None:
    traffic = AlertTraffic(
        world="games", seed=1, events_per_minute=2_000, incident="events_low", incident_at=AT, is_dark=True
    )
    traffic.generate(connection, FIRST, MINUTES)

    ((last,),) = rows(connection, "SELECT max(event_time) FROM traffic WHERE NOT is_removed")
    assert last < AT
