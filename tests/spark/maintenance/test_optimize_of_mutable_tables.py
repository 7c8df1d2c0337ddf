"""OPTIMIZE of mutable, live, gold and quarantine tables: nothing is rebuilt or lost, also while a query merges."""

from __future__ import annotations

import datetime as dt
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.locks.write_turn import TurnRecord, write_turn
from deltaworks.control.provenance import user_metadata
from deltaworks.engine.live import start_live_query
from deltaworks.errors import ConcurrencyError
from deltaworks.gold.pinned_inputs import read_built_from
from deltaworks.maintenance import optimize_night
from deltaworks.maintenance.optimize import TableOptimizer
from deltaworks.maintenance.optimize_night import optimize_tables
from deltaworks.maintenance.partition_choice import OptimizePolicy
from deltaworks.maintenance.table_health.measure import file_sizes_by_partition, table_health
from deltaworks.tables.commit import Step, commit_step
from deltaworks.testing import present
from tests.spark.made_pulse import HEAD
from tests.spark.mutations.mutation_harness import DATA, PIPELINE, START, MutationHarness, declared
from tests.unit.maintenance.table_data import DAILY, DAILY_SQL, ORDERS, SHOP, make
from tests.waiting import eventually


def land(stage: MutationHarness, *orgs: str) -> None:
    days = (0, 1)
    stage.land(
        rows=[
            {"org_id": org, "event_id": f"{org}{day}", "id": "a", "time": START + dt.timedelta(days=day)}
            for org in orgs
            for day in days
        ]
    )


def files(stage: MutationHarness) -> dict[str, int]:
    found = file_sizes_by_partition(stage.lake, paths.table(PIPELINE, DATA))
    return {"/".join(str(value) for _, value in sorted(place)): len(sizes) for place, sizes in found.items()}


def turn(stage: MutationHarness) -> TurnRecord | None:
    found = stage.objects.get(paths.turn_request(PIPELINE, DATA))
    return None if found is None else TurnRecord.decode_or_none(found.data)


def test_changed_partitions_are_rewritten_under_the_write_turn(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = MutationHarness(tmp_path, declared(partition_by=("event_date", "org_id")))
    for orgs in (("acme", "o'neil"), ("o'neil",)):
        land(stage, *orgs)
    command, held = TableOptimizer._run_optimize, []

    def looked_at(*arguments: object) -> None:
        held.append(turn(stage))
        command(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(TableOptimizer, "_run_optimize", looked_at)
    policy = OptimizePolicy(zorder_from_bytes=0)
    (result,) = optimize_tables(lambda: spark, stage.catalog, PIPELINE, tables=[DATA], policy=policy)

    assert (result.partitions, result.files_before, result.files_after) == (2, 4, 2)
    assert files(stage) == {f"2026-01-0{day}/{org}": 1 for day in (1, 2) for org in ("acme", "o'neil")}
    assert [record and record.state for record in held] == ["granted"]
    assert present(turn(stage)).state == "released"
    (again,) = optimize_tables(lambda: spark, stage.catalog, PIPELINE, tables=[DATA], policy=policy)
    assert again.reason == "nothing to do: 4 partitions of one file"


def test_a_table_with_another_jobs_write_turn_is_skipped(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = MutationHarness(tmp_path)
    land(stage, "acme")
    land(stage, "acme")
    before = stage.version()
    plain = optimize_night.write_turn
    monkeypatch.setattr(optimize_night, "write_turn", lambda *given, **named: plain(*given, **named, wait_seconds=1.0))

    held = write_turn(stage.objects, PIPELINE, DATA, by="a merge", wait_seconds=5)
    tomorrow, every = utc_now() + dt.timedelta(days=1), OptimizePolicy(min_small_files=2)
    with held, pytest.raises(ConcurrencyError, match="TURN_NOT_GRANTED"):
        optimize_tables(lambda: spark, stage.catalog, PIPELINE, tables=[DATA], now=tomorrow, policy=every)

    assert stage.version() == before


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
    health = present(table_health(pulse.lake, KEY))
    return {str(each.partition[0][1]): each.files for each in health.partition_health}
