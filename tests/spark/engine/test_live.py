"""A live table: windowed counts that grow with the stream, are idempotent, and report rows dropped by the watermark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.engine import live as live_module
from deltaworks.engine.live import start_live_query
from deltaworks.errors import FencedError, TransientError
from deltaworks.tables.log import CommitInfo, commit_history
from tests.spark.live_progress import LiveProgress
from tests.spark.made_pulse import HEAD

PULSE = (
    HEAD
    + """\
tables: [{name: events, catch_all: true}]
live: [{name: hourly, reads: events, window_minutes: 60, watermark_minutes: 180, group_by: [event_name]}]
"""
)
START = dt.datetime(2025, 3, 1, 12, tzinfo=dt.UTC)


@pytest.fixture
def pulse(make_project: Callable[..., Any]) -> Any:
    return make_project({"pulse": (PULSE, {})})


def append(pulse: Any, *events: tuple[float, str | None]) -> None:
    rows = [{"event_time": START + dt.timedelta(hours=hours), "event_name": name} for hours, name in events]
    pulse.append("pulse", "events", rows)


def process_available(spark: SparkSession, pulse: Any, **options: Any) -> list[LiveProgress]:
    live = pulse.spec("pulse").live[0]
    query = start_live_query(spark, pulse.catalog, "pulse", live, available_now=True, **options)
    query.awaitTermination(120)
    return [LiveProgress.from_spark(progress) for progress in query.recentProgress]


def counts(pulse: Any) -> dict[tuple[float, str | None], int]:
    rows = pulse.rows("pulse", "hourly")
    found = {((row["window_start"] - START) / dt.timedelta(hours=1), row["event_name"]): row["events"] for row in rows}
    assert len(found) == len(rows), "one row per window and group"
    return found


def commits(pulse: Any) -> list[CommitInfo]:
    key = paths.table("pulse", "hourly")
    return list(commit_history(pulse.lake, key, newest=pulse.lake.open(key).version()))


def checkpoint(pulse: Any) -> Path:
    return Path(pulse.lake.storage.prefix) / paths.live_checkpoint("pulse", 1, "hourly")


def test_counts_grow_with_each_batch_and_every_commit_names_its_batch(spark: SparkSession, pulse: Any) -> None:
    append(pulse, (0, "a"), (0.5, "a"), (0.5, None), (1, "a"))
    process_available(spark, pulse)
    assert counts(pulse) == {(0, "a"): 2, (0, None): 1, (1, "a"): 1}
    append(pulse, (0.9, "a"), (0.9, None), (2, "b"))

    process_available(spark, pulse)

    assert counts(pulse) == {(0, "a"): 3, (0, None): 2, (1, "a"): 1, (2, "b"): 1}
    made = [(commit.operation, commit.metadata["operation"], commit.metadata["batch"]) for commit in commits(pulse)]
    assert made[-1] == ("CREATE TABLE", "create_table", "create")
    assert [(operation, ours) for operation, ours, _ in made[:-1]] == [("WRITE", "live")] * (len(made) - 1)
    assert all(commit.metadata["pipeline"] == "pulse" and commit.metadata["run"] for commit in commits(pulse))
    row = next(row for row in pulse.rows("pulse", "hourly") if row["event_name"] == "b")
    assert row["window_date"] == START.date()
    assert row["window_end"] - row["window_start"] == dt.timedelta(hours=1)


def test_large_batches_are_merged_by_spark(spark: SparkSession, pulse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    append(pulse, (0, "a"), (0.5, None))
    process_available(spark, pulse)
    append(pulse, (0.9, "a"), (0.9, None), (2, "b"))
    monkeypatch.setattr(live_module, "MAX_COLLECTED_ROWS", 1)

    process_available(spark, pulse)

    assert counts(pulse) == {(0, "a"): 2, (0, None): 2, (2, "b"): 1}
    assert [commit.operation for commit in commits(pulse)] == ["MERGE", "WRITE", "CREATE TABLE"]


@pytest.mark.parametrize("most_rows", [live_module.MAX_COLLECTED_ROWS, 1], ids=["here", "spark"])
def test_repeated_batches_change_nothing(
    spark: SparkSession, pulse: Any, monkeypatch: pytest.MonkeyPatch, most_rows: int
) -> None:
    monkeypatch.setattr(live_module, "MAX_COLLECTED_ROWS", most_rows)
    append(pulse, (0, "a"), (1, "a"))
    process_available(spark, pulse)
    append(pulse, (0, "a"))
    process_available(spark, pulse)
    before, versions = counts(pulse), [commit.version for commit in commits(pulse)]
    done = sorted((checkpoint(pulse) / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in done[-2:]:
        path.unlink()
        (path.parent / f".{path.name}.crc").unlink(missing_ok=True)

    replayed = process_available(spark, pulse)

    assert replayed, "the last batch did run again"
    assert counts(pulse) == before == {(0, "a"): 2, (1, "a"): 1}
    assert [commit.version for commit in commits(pulse)] == versions, "the transaction id kept old counts out"


@pytest.mark.integration
def test_a_lost_checkpoint_counts_again_and_ends_with_the_same_counts(spark: SparkSession, pulse: Any) -> None:
    append(pulse, (0, "a"), (1, "a"))
    append(pulse, (0, "a"))
    process_available(spark, pulse)
    checkpoint(pulse).rename(checkpoint(pulse).with_name("lost"))
    append(pulse, (1, "a"))

    process_available(spark, pulse)

    assert counts(pulse) == {(0, "a"): 2, (1, "a"): 2}


def test_events_behind_the_watermark_are_dropped_and_counted(spark: SparkSession, pulse: Any) -> None:
    append(pulse, (0, "a"), (10, "a"))
    process_available(spark, pulse)
    append(pulse, (0, "a"), (9, "a"))

    progress = process_available(spark, pulse)

    assert counts(pulse) == {(0, "a"): 1, (9, "a"): 1, (10, "a"): 1}
    assert sum(batch.late_rows for batch in progress) == 1
    assert progress[-1].watermark == "2025-03-01T19:00:00.000Z"


def test_nothing_is_merged_once_the_lease_is_lost(spark: SparkSession, pulse: Any) -> None:
    append(pulse, (0, "a"))

    def lost() -> None:
        raise FencedError("LEASE_LOST", "another driver has taken over")

    with pytest.raises(StreamingQueryException, match="LEASE_LOST"):
        process_available(spark, pulse, before_merge=lost)

    assert counts(pulse) == {}


def test_waiting_for_a_missing_table_ends_with_an_error(spark: SparkSession, pulse: Any) -> None:
    with pytest.raises(TransientError, match="LIVE_INPUT_MISSING"):
        process_available(spark, pulse, wait_seconds=0.1)
