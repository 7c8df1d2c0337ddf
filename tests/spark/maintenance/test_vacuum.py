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
from deltaworks.errors import ConfigError
from deltaworks.maintenance.vacuum import vacuum_tables
from deltaworks.tables.log import commit_history

PULSE = """\
pipeline: pulse
description: counts
owner: tests
source: {kind: s3_sqs, relay: landing, bucket: landing}
event: {name: {path: name}, time: {path: time}}
tables: [{name: events, catch_all: true, zorder_by: [event_name]}]
"""
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
    first = Path(pulse.lake.storage.prefix) / KEY / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in first.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["createdTime"] -= 20 * 24 * 3_600_000
    first.write_text("".join(json.dumps(action) + "\n" for action in actions))
    return pulse


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
