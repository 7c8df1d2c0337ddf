"""Model features from the shipped SQL, run in DuckDB, match a scan of all arrivals at every minute."""

from __future__ import annotations

import datetime as dt
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.specs.catalog import project_root
from tests.unit.gold.gold_planning import in_duckdb

SHIPPED = project_root() / "include" / "pipelines"
SUMS = ("requests", "answered", "errors", "cacheable", "hits", "timed_hits", "first_byte_ms", "seconds")
#: Near midnight, so that windows and what is usual go over it.
START = dt.datetime(2026, 3, 10, 23, 30, tzinfo=dt.UTC)
MINUTE, DAY = dt.timedelta(minutes=1), dt.timedelta(days=1)
#: The minute of an event, how many minutes later it arrived, its requests and errors.
ARRIVALS = st.lists(
    st.tuples(st.integers(0, 90), st.integers(0, 80), st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=25
)
Arrival = tuple[int, int, int, int]
CONNECTION = duckdb.connect(":memory:")
CONNECTION.execute("SET TimeZone = 'UTC'")


def run(path: str, **tables: list[dict[str, Any]]) -> list[dict[str, Any]]:
    sql = in_duckdb((SHIPPED / path).read_text())
    for name, rows in tables.items():
        CONNECTION.register(name, pa.Table.from_pylist(rows))
    return CONNECTION.sql(sql).to_arrow_table().to_pylist()


def row(arrival: Arrival) -> dict[str, Any]:
    number, on_the_way, requests, errors = arrival
    minute = START + number * MINUTE
    counts = dict.fromkeys(SUMS, 0.0) | {"requests": float(requests), "answered": 10.0, "errors": float(errors)}
    arrived = minute + (on_the_way + 1) * MINUTE
    return {"event_date": minute.date(), "minute": minute, "arrived_at": arrived, "cdn": "a", "edge": "FRA", **counts}


@settings(max_examples=25)
@given(ARRIVALS)
def test_features_of_a_minute_are_of_what_had_arrived_by_then(arrivals: list[Arrival]) -> None:
    rows = [row(arrival) for arrival in arrivals]

    features = {item["minute"]: item for item in run("cdn_logs/gold/edge_features.sql", edge_arrivals=rows)}

    for number in range(1, 160):
        at = START + number * MINUTE
        there = [item for item in rows if at - 60 * MINUTE <= item["minute"] < at and item["arrived_at"] <= at]
        is_there = any(item["arrived_at"] > at - 5 * MINUTE for item in there)
        assert (at in features) == is_there
        for span in (1, 5, 15, 60) if is_there else ():
            inside = [item for item in there if item["minute"] >= at - span * MINUTE]
            answered = sum(item["answered"] for item in inside)
            errors = sum(item["errors"] for item in inside) / answered if answered else None
            assert features[at][f"error_{span}"] == pytest.approx(errors)
            assert features[at][f"requests_{span}"] == pytest.approx(sum(item["requests"] for item in inside) / span)
            assert features[at]["event_date"] == at.date()


@settings(max_examples=15)
@given(ARRIVALS, st.integers(1, 150))
def test_what_arrives_later_changes_nothing_of_what_was(arrivals: list[Arrival], number: int) -> None:
    at = START + number * MINUTE
    rows = [row(arrival) for arrival in arrivals]

    whole = run("cdn_logs/gold/edge_features.sql", edge_arrivals=rows)
    present = [item for item in rows if item["arrived_at"] <= at]
    then = run("cdn_logs/gold/edge_features.sql", edge_arrivals=present) if present else []

    assert by_minute(whole, at) == by_minute(then, at)


def by_minute(features: list[dict[str, Any]], until: dt.datetime) -> list[dict[str, Any]]:
    return sorted((item for item in features if item["minute"] <= until), key=lambda item: item["minute"])


def test_what_is_usual_is_of_the_same_hour_of_days_before_as_it_was_there_when_the_date_began() -> None:
    noon = dt.datetime(2026, 3, 10, 12, tzinfo=dt.UTC)

    def made(at: dt.datetime, errors: float, arrived: dt.datetime | None = None) -> dict[str, Any]:
        base = row((0, 0, 10, 0))
        return {**base, "event_date": at.date(), "minute": at, "arrived_at": arrived or at + MINUTE, "errors": errors}

    rows = [
        made(noon, 5.0),
        made(noon - DAY, 1.0),
        made(noon - 7 * DAY, 3.0),
        made(noon - 8 * DAY, 9.0),
        made(noon - DAY + dt.timedelta(hours=2), 9.0),
        made(noon - 2 * DAY, 9.0, arrived=noon),
    ]

    features = {item["minute"]: item for item in run("cdn_logs/gold/edge_features.sql", edge_arrivals=rows)}

    assert features[noon + MINUTE]["error_5"] == pytest.approx(0.5)
    assert features[noon + MINUTE]["error_over"] == pytest.approx(0.5 - (1 + 3) / 20)


def test_an_edge_is_slow_after_three_minutes_in_a_row_until_five_are_over() -> None:
    slow = {40, 41, 42, 50, 51, 60}
    day = dt.datetime(2026, 3, 10, 12, tzinfo=dt.UTC)
    rows = []
    for begin in (day - DAY, day):
        for number in range(60):
            minute = begin + number * MINUTE
            latency = 150.0 if begin == day and number in slow else 100.0
            rows.append({"minute": minute, "cdn": "a", "edge": "FRA", "timed_hits": 30, "first_byte_ms": 30 * latency})

    states = run("cdn_logs/models/edge_failure.sql", edge_arrivals=rows)

    held = sorted(item["minute"] for item in states if item["holds"])
    assert held == [day + number * MINUTE for number in (43, 44, 45, 46, 47)]


def test_a_viewer_is_known_at_the_end_of_a_sunday_by_plays_that_had_come() -> None:
    sunday = dt.date(2026, 3, 15)

    def play(
        name: str, days_before: int, *, late_days: int = 0, stalled: int = 0, failed: bool = False
    ) -> dict[str, Any]:
        date = sunday - days_before * DAY
        noon = dt.datetime.combine(date, dt.time(12), dt.UTC)
        return {
            "event_date": date, "play_id": name, "media_id": "m", "user_id": "u", "arrived_at": noon + late_days * DAY,
            "played_ms": 60_000, "stalled_ms": stalled, "startup_ms": 500.0, "is_played": True, "is_failed": failed,
        }  # fmt: skip

    plays = [
        play("a", 0, stalled=60_000),
        play("b", 6),
        play("c", 7, failed=True),
        play("d", 27),
        play("e", 28),
        play("f", 3, late_days=4),
        play("g", -1),
    ]

    features = {item["cutoff_date"]: item for item in run("video_qos/gold/viewer_features.sql", viewer_plays=plays)}

    then = features[sunday]
    assert (then["plays_7"], then["plays_28"], then["minutes_28"], then["recency_days"]) == (2, 4, 4.0, 0)
    assert (then["rebuffer_7"], then["rebuffer_28"]) == (pytest.approx(1 / 3), pytest.approx(1 / 5))
    assert (then["failures_7"], then["failures_28"]) == (0.0, 0.25)
    later = features[sunday + 7 * DAY]
    assert (later["plays_7"], later["plays_28"], later["recency_days"]) == (1, 5, 6)


def test_a_player_is_known_at_the_end_of_a_sunday_by_days_that_had_come() -> None:
    sunday = dt.date(2026, 3, 15)

    def day(days_before: int, *, late_days: int = 0, failed: int = 0) -> dict[str, Any]:
        date = sunday - days_before * DAY
        counts = {
            "events": 10,
            "sessions": 2,
            "ended_sessions": 1,
            "levels": 4,
            "failed_levels": failed,
            "purchases": 0,
        }
        return {"event_date": date, "arrived_date": date + late_days * DAY, "device_id": "d", **counts}

    days = [day(1, failed=2), day(20), day(28), day(2, late_days=3)]

    features = {item["cutoff_date"]: item for item in run("games/gold/player_features.sql", player_days=days)}

    then = features[sunday]
    assert (then["sessions_7"], then["sessions_28"], then["days_28"], then["recency_days"]) == (2, 4, 2, 1)
    assert (then["failures_7"], then["failures_28"], then["ended_28"]) == (0.5, 0.25, 0.5)
