"""VACUUM counts first, deletes only what is old enough, and refuses a retention that is too short."""

from __future__ import annotations

import datetime as dt
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import open_objects
from deltaworks.errors import ConfigError
from deltaworks.maintenance.vacuum import VacuumResult, vacuum_tables
from deltaworks.tables.log import commit_history
from tests.spark.made_pulse import HEAD

PULSE = (
    HEAD
    + """\
tables: [{name: events, catch_all: true, zorder_by: [event_name]}]
"""
)
START = dt.datetime(2025, 3, 1, 12, tzinfo=dt.UTC)
KEY = paths.table("pulse", "events")


@pytest.fixture
def pulse(make_project: Callable[..., Any]) -> Any:
    project = make_project({"pulse": (PULSE, {})})
    for _ in range(2):
        project.append("pulse", "events", [{"event_time": START, "event_name": "a"}])
    return project


@pytest.fixture
def old_pulse(pulse: Any) -> Any:
    """The same with a table that was created twenty days ago."""
    in_metadata(pulse, createdTime=int((time.time() - 20 * 24 * 3600) * 1000))
    return pulse


def in_metadata(pulse: Any, **changes: Any) -> None:
    """Let the table have been created otherwise."""
    first = Path(pulse.lake.storage.prefix) / KEY / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in first.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"] |= changes
    first.write_text("".join(json.dumps(action) + "\n" for action in actions))


def orphan(pulse: Any, name: str, *, age_hours: float) -> Path:
    """A data file that no commit names, as a crashed writer leaves it."""
    path = Path(pulse.lake.storage.prefix) / KEY / "event_date=2025-03-01" / name
    path.write_bytes(b"x" * 1000)
    written_at = time.time() - age_hours * 3600
    os.utime(path, (written_at, written_at))
    return path


def test_a_dry_run_counts_files_and_bytes_and_deletes_nothing(spark: SparkSession, old_pulse: Any) -> None:
    old = orphan(old_pulse, "old orphan%20.parquet", age_hours=200)
    orphan(old_pulse, "new.parquet", age_hours=100)
    version = old_pulse.lake.open(KEY).version()

    results = {result.table: result for result in vacuum_tables(spark, old_pulse.catalog, "pulse")}

    assert (results["events"].files, results["events"].bytes, results["events"].dry_run) == (1, 1000, True)
    assert results["quarantine"].reason == "it does not exist yet"
    assert old.exists()
    assert old_pulse.lake.open(KEY).version() == version


def test_a_longer_retention_is_honoured_and_commits_name_their_run(spark: SparkSession, old_pulse: Any) -> None:
    older, old = orphan(old_pulse, "older.parquet", age_hours=400), orphan(old_pulse, "old.parquet", age_hours=200)
    (left_out,) = vacuum_tables(spark, old_pulse.catalog, "pulse", retention_hours=300, tables=["events"])
    assert "skipped: 300 h are to be kept, and its log remembers 168 h" in left_out.reason
    in_metadata(old_pulse, configuration={"delta.deletedFileRetentionDuration": "interval 300 hours"})

    (result,) = vacuum_tables(spark, old_pulse.catalog, "pulse", dry_run=False, retention_hours=300, tables=["events"])

    assert (result.files, result.bytes) == (1, 1000)
    assert (older.exists(), old.exists()) == (False, True)
    assert len(old_pulse.rows("pulse", "events")) == 2
    commits = list(commit_history(old_pulse.lake, KEY, newest=old_pulse.lake.open(KEY).version()))
    assert [commit.operation for commit in commits[:2]] == ["VACUUM END", "VACUUM START"]
    assert [commit.metadata["operation"] for commit in commits] == ["vacuum", "vacuum", "ingest", "ingest", "ingest"]


def test_a_table_younger_than_the_retention_has_nothing_to_delete(spark: SparkSession, pulse: Any) -> None:
    results = {result.table: result for result in vacuum_tables(spark, pulse.catalog, "pulse")}

    assert results["events"].reason == "it was created less than 168 h ago"


def test_a_retention_below_seven_days_is_refused(spark: SparkSession, pulse: Any) -> None:
    with pytest.raises(ConfigError, match="VACUUM_RETENTION_TOO_SHORT"):
        vacuum_tables(spark, pulse.catalog, "pulse", dry_run=False, retention_hours=167)
    with pytest.raises(ConfigError, match="VACUUM_RETENTION_TOO_SHORT"):
        vacuum_tables(spark, pulse.catalog, "pulse", dry_run=False, retention_hours=0, below_minimum="it is a test")


def replaced(pulse: Any, *, hours_ago: float) -> list[Path]:
    """All files of the table, which a rewrite has replaced so long ago."""
    table = pulse.lake.open(KEY)
    before = {Path(uri.removeprefix("file://")) for uri in table.file_uris()}
    table.optimize.compact()
    newest = Path(pulse.lake.storage.prefix) / KEY / "_delta_log" / f"{table.version():020d}.json"
    then = int((time.time() - hours_ago * 3600) * 1000)
    actions = [json.loads(line) for line in newest.read_text().splitlines()]
    for action in actions:
        if "remove" in action:
            action["remove"]["deletionTimestamp"] = then
    newest.write_text("".join(json.dumps(action) + "\n" for action in actions))
    for path in (*before, *newest.parent.glob("*.json")):
        os.utime(path, (then / 1000 - 7200, then / 1000 - 7200))
    assert len(before) > 1
    return sorted(before)


def test_less_than_seven_days_needs_a_reason_goes_by_the_hour_and_waits_for_whoever_needs_more(
    spark: SparkSession, old_pulse: Any
) -> None:
    gone = replaced(old_pulse, hours_ago=50)
    young = orphan(old_pulse, "young.parquet", age_hours=40)
    objects = open_objects(old_pulse.catalog.environment.lake)
    PipelineHome(objects, "pulse").readers.keep("events", reader="slow", version=0, hours=1)
    made_at(old_pulse, 0, hours_ago=60)

    def vacuum() -> VacuumResult:
        (result,) = vacuum_tables(
            spark,
            old_pulse.catalog,
            "pulse",
            dry_run=False,
            retention_hours=48,
            below_minimum="a test",
            tables=["events"],
        )
        return result

    held = vacuum()
    assert (held.files, held.retention_hours) == (0, 63)
    assert "the reader slow" in held.reason
    assert all(path.exists() for path in gone)

    PipelineHome(objects, "pulse").readers.release("events", reader="slow")
    done = vacuum()
    assert (done.files, done.retention_hours, done.reason) == (len(gone), 48, "")
    assert not any(path.exists() for path in gone)
    assert young.exists()
    assert len(old_pulse.rows("pulse", "events")) == 2
    newest = old_pulse.lake.open(KEY).version()
    (commit, *_) = commit_history(old_pulse.lake, KEY, newest=newest)
    assert commit.metadata["below_minimum"] == "a test"


def made_at(pulse: Any, version: int, *, hours_ago: float) -> None:
    path = Path(pulse.lake.storage.prefix) / KEY / "_delta_log" / f"{version:020d}.json"
    then = time.time() - hours_ago * 3600
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["timestamp"] = int(then * 1000)
    path.write_text("".join(json.dumps(action) + "\n" for action in actions))
    os.utime(path, (then, then))


@pytest.mark.integration
def test_the_log_alone_does_once_a_folder_has_been_listed_and_where_it_does_not_the_folder_is_listed_again(
    spark: SparkSession, old_pulse: Any
) -> None:
    def vacuum(mode: Any = None) -> VacuumResult:
        (result,) = vacuum_tables(spark, old_pulse.catalog, "pulse", dry_run=False, mode=mode, tables=["events"])
        return result

    first = vacuum()
    assert (first.mode, first.reason) == ("full", "listed: it has not been listed yet")

    gone = replaced(old_pulse, hours_ago=200)
    lost = orphan(old_pulse, "lost.parquet", age_hours=200)
    second = vacuum()
    assert (second.mode, second.files, second.reason) == ("lite", len(gone), "")
    assert not any(path.exists() for path in gone)
    assert lost.exists()

    table = old_pulse.lake.open(KEY)
    table.create_checkpoint()
    log = Path(old_pulse.lake.storage.prefix) / KEY / "_delta_log"
    # As Delta cleans it up: what is older than the last checkpoint goes.
    for path in (*sorted(log.glob("0*.json"))[:-1], *log.glob("_last_vacuum_info")):
        path.unlink()
    aged = time.time() - 190 * 3600
    for path in log.glob("0*"):
        os.utime(path, (aged, aged))
    third = vacuum()
    assert (third.mode, third.files) == ("full", 1)
    assert third.reason == "listed: its log does not reach back to the last VACUUM"
    assert not lost.exists()
    assert len(old_pulse.rows("pulse", "events")) == 2
