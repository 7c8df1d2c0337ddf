"""OPTIMIZE of gold, quarantine and live tables: nothing is rebuilt or lost, also while a query merges."""

from __future__ import annotations

import datetime as dt
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.provenance import user_metadata
from deltaworks.engine.live import start_live_query
from deltaworks.gold.input_views import read_built_from
from deltaworks.maintenance.optimize_night import optimize_tables
from deltaworks.maintenance.table_health.measure import table_health
from deltaworks.tables.commit import Step, commit_step
from tests.spark.made_pulse import HEAD
from tests.unit.maintenance.table_data import DAILY, DAILY_SQL, ORDERS, SHOP, make
from tests.waiting import eventually

NIGHT = dt.datetime(2026, 1, 2, 4, tzinfo=dt.UTC)


@pytest.mark.integration
def test_small_files_are_merged_and_nothing_else_changes(spark: SparkSession, make_project: Callable[..., Any]) -> None:
    project = make_project({"shop": (SHOP + ORDERS + DAILY, DAILY_SQL)})
    keys = {name: make(project.lake, "shop", name, files=5, days=2) for name in ("daily", "quarantine")}
    made = user_metadata(pipeline="shop", batch="", operation="rebuild_gold", built_from={"orders": 7}, fingerprint="f")
    commit_step(project.lake.open(keys["daily"]), [], step=Step("shop/built", 1), user_metadata=made)
    rows = {name: sorted(map(str, project.rows("shop", name))) for name in keys}

    done = {each.table: each for each in optimize_tables(lambda: spark, project.catalog, "shop", now=NIGHT)}
    again = optimize_tables(lambda: spark, project.catalog, "shop", now=NIGHT)

    for name, key in keys.items():
        # The second day is open.
        assert (done[name].compacted, done[name].files_before, done[name].files_after) == (1, 5, 1), name
        assert len(project.lake.open(key).file_uris()) == 6
        assert sorted(map(str, project.rows("shop", name))) == rows[name]
    assert done["orders"].reason == "it does not exist yet"
    assert all(each.skipped for each in again)
    built = read_built_from(project.lake, paths.table("shop", "daily"))
    assert (built.is_traceable, built.versions) == (True, {"orders": 7})


PULSE = (
    HEAD
    + """\
tables: [{name: events, catch_all: true}]
live:
  - {name: hourly, reads: events, window_minutes: 60, trigger_seconds: 1, group_by: [event_name]}
"""
)
TODAY = dt.datetime(2025, 3, 4, tzinfo=dt.UTC)
CLOSED_DAYS, ROUNDS = 3, 6
KEY = paths.table("pulse", "hourly")


@pytest.mark.integration
def test_closed_days_are_merged_while_the_query_counts_today(
    spark: SparkSession, make_project: Callable[..., Any]
) -> None:
    pulse = make_project({"pulse": (PULSE, {})})
    sent: Counter[tuple[dt.datetime, str]] = Counter()

    def append(*at: tuple[dt.datetime, str]) -> None:
        pulse.append("pulse", "events", [{"event_time": time, "event_name": name} for time, name in at])
        sent.update((time.replace(minute=0), name) for time, name in at)

    live = pulse.spec("pulse").live[0]
    for day in range(CLOSED_DAYS, 0, -1):
        for number in range(ROUNDS):
            append((TODAY - dt.timedelta(days=day, hours=-number), f"n{number}"))
            start_live_query(spark, pulse.catalog, "pulse", live, available_now=True).awaitTermination(120)
    before = files_of(pulse)
    assert all(before[str((TODAY - dt.timedelta(days=day)).date())] == ROUNDS for day in range(1, CLOSED_DAYS + 1))

    query, over = start_live_query(spark, pulse.catalog, "pulse", live), threading.Event()

    def send_today() -> None:
        number = 0
        while not over.wait(0.3):
            append((TODAY + dt.timedelta(hours=10, minutes=number % 60), f"n{number % 7}"))
            number += 1

    sending = threading.Thread(target=send_today)
    sending.start()
    try:
        eventually(lambda: len(query.recentProgress) >= 2, "the query merges", seconds=60)
        began = len(query.recentProgress)
        (done,) = [
            each
            for each in optimize_tables(lambda: spark, pulse.catalog, "pulse", now=TODAY + dt.timedelta(hours=12))
            if each.table == "hourly"
        ]
        eventually(lambda: len(query.recentProgress) >= began + 3, "the query continues", seconds=60)
    finally:
        over.set()
        sending.join()
    query.processAllAvailable()
    query.stop()

    assert query.exception() is None
    assert (done.compacted, done.files_before, done.files_after, done.error) == (3, 3 * ROUNDS, 3, "")
    after = files_of(pulse)
    assert [after[str((TODAY - dt.timedelta(days=day)).date())] for day in range(1, CLOSED_DAYS + 1)] == [1, 1, 1]
    counted = {(row["window_start"], row["event_name"]): row["events"] for row in pulse.rows("pulse", "hourly")}
    assert counted == sent


def files_of(pulse: Any) -> dict[str, int]:
    """Returns the files of each day."""
    health = table_health(pulse.lake, KEY)
    assert health is not None
    return {str(each.partition[0][1]): each.files for each in health.partition_health}
