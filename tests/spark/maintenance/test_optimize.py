"""OPTIMIZE takes the partitions it improves, leaves rows as they are, and finds nothing to do the second time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.errors import ConfigError
from deltaworks.maintenance import optimize
from deltaworks.maintenance.optimize import optimize_tables
from deltaworks.tables.health import table_health
from deltaworks.tables.log import commit_history

PULSE = """\
pipeline: pulse
description: counts
owner: tests
source: {kind: s3_sqs, relay: landing, bucket: landing}
event: {name: {path: name}, time: {path: time}}
tables:
  - {name: events, catch_all: true, zorder_by: [event_name]}
  - {name: plain, when: {name: plain}}
  - {name: never, when: {name: never}, zorder_by: [event_name]}
"""
START = dt.datetime(2025, 3, 1, 12, tzinfo=dt.UTC)
KEY = paths.table("pulse", "events")


@pytest.fixture
def pulse(make_project: Callable[..., Any]) -> Any:
    return make_project({"pulse": (PULSE, {})})


def append(pulse: Any, *days: int) -> None:
    rows = [{"event_time": START + dt.timedelta(days=day), "event_id": f"e{day}", "event_name": "a"} for day in days]
    pulse.append("pulse", "events", rows)


def newest(pulse: Any) -> Any:
    return next(commit_history(pulse.lake, KEY, newest=pulse.lake.open(KEY).version()))


def ids(pulse: Any) -> list[str]:
    return sorted(row["event_id"] for row in pulse.rows("pulse", "events"))


def test_partitions_with_several_files_are_merged_and_a_second_run_has_nothing_to_do(
    spark: SparkSession, pulse: Any
) -> None:
    append(pulse, 0, 1)
    append(pulse, 0, 2)
    append(pulse, 0, 2)
    before = ids(pulse)

    first = {result.table: result for result in optimize_tables(spark, pulse.catalog, "pulse")}
    second = {result.table: result for result in optimize_tables(spark, pulse.catalog, "pulse")}

    taken = first["events"]
    assert (taken.partitions, taken.files_before, taken.files_after) == (2, 5, 2)
    assert table_health(pulse.lake, KEY).files == 3
    assert ids(pulse) == before
    assert first["plain"].reason == "it declares no zorder_by"
    assert first["never"].reason == "it does not exist yet"
    assert (second["events"].skipped, second["events"].reason) == (True, "nothing came since the last OPTIMIZE")
    commit = newest(pulse)
    assert commit.operation == "OPTIMIZE"
    assert {"pipeline": "pulse", "operation": "optimize", "looked_at_version": 3}.items() <= commit.metadata.items()


def test_only_partitions_that_changed_since_are_rewritten_again(spark: SparkSession, pulse: Any) -> None:
    append(pulse, 0, 1)
    append(pulse, 0, 1)
    optimize_tables(spark, pulse.catalog, "pulse", tables=["events"])
    kept = {uri for uri in pulse.lake.open(KEY).file_uris() if "2025-03-01" in uri}
    append(pulse, 1, 5)

    (result,) = optimize_tables(spark, pulse.catalog, "pulse", tables=["events"])

    assert (result.partitions, result.files_before, result.files_after) == (1, 2, 1)
    assert kept <= set(pulse.lake.open(KEY).file_uris())
    append(pulse, 9)
    (alone,) = optimize_tables(spark, pulse.catalog, "pulse", tables=["events"])
    assert (alone.skipped, alone.reason) == (True, "every changed partition has one file")


def test_rows_that_come_while_it_plans_are_taken_the_next_time(
    spark: SparkSession, pulse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(pulse, 0, 1)
    append(pulse, 0, 1)
    run = optimize._run

    def append_then_run(*arguments: Any) -> tuple[int, int]:
        append(pulse, 1, 3)
        append(pulse, 3)
        return run(*arguments)

    monkeypatch.setattr(optimize, "_run", append_then_run)
    optimize_tables(spark, pulse.catalog, "pulse", tables=["events"])
    monkeypatch.undo()

    (result,) = optimize_tables(spark, pulse.catalog, "pulse", tables=["events"])

    assert (result.partitions, result.files_before) == (1, 2)
    assert table_health(pulse.lake, KEY).files == 3


def test_a_run_that_died_between_two_commits_is_taken_up_again(
    spark: SparkSession, pulse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(pulse, 0, 1)
    append(pulse, 0, 1)
    monkeypatch.setattr(optimize, "BYTES_PER_COMMIT", 1)
    run, calls = optimize._run, []

    def die_at_the_second(*arguments: Any) -> tuple[int, int]:
        calls.append(arguments)
        if len(calls) == 2:
            raise RuntimeError("killed")
        return run(*arguments)

    monkeypatch.setattr(optimize, "_run", die_at_the_second)
    with pytest.raises(RuntimeError, match="killed"):
        optimize_tables(spark, pulse.catalog, "pulse", tables=["events"])
    assert table_health(pulse.lake, KEY).files == 3
    monkeypatch.setattr(optimize, "_run", run)

    (result,) = optimize_tables(spark, pulse.catalog, "pulse", tables=["events"])

    assert (result.partitions, table_health(pulse.lake, KEY).files) == (1, 2)


def test_an_unknown_table_is_a_configuration_error(spark: SparkSession, pulse: Any) -> None:
    with pytest.raises(ConfigError, match="TABLE_UNKNOWN"):
        optimize_tables(spark, pulse.catalog, "pulse", tables=["evnts"])
