"""VACUUM during a slow reader and a long transaction: both finish, and obsolete files are deleted afterwards."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.locks.write_turn import TurnRecord
from deltaworks.control.objects import open_objects
from deltaworks.maintenance import vacuum
from deltaworks.maintenance.vacuum import VacuumResult, vacuum_tables
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.files import write_file
from tests.spark.made_pulse import HEAD
from tests.unit.maintenance.aged_tables import in_metadata, made_at, replaced

pytestmark = pytest.mark.integration
PULSE = HEAD + "tables: [{name: events, catch_all: true, zorder_by: [event_name]}]\n"
START = dt.datetime(2025, 3, 1, 12, tzinfo=dt.UTC)
KEY = paths.table("pulse", "events")
LIVE = "live: [{name: by_name, reads: events}]\n"
ROWS = 4


@pytest.fixture
def pulse(make_project: Callable[..., Any]) -> Any:
    """A table with four files, created three days ago, with a live table that reads it."""
    project = make_project({"pulse": (PULSE + LIVE, {})})
    for number in range(ROWS):
        project.append("pulse", "events", [{"event_time": START, "event_name": f"e{number}"}])
    in_metadata(project.lake, KEY, createdTime=int((time.time() - 20 * 24 * 3600) * 1000))
    for version in range(ROWS + 1):
        made_at(project.lake, KEY, version, hours_ago=72 - version)
    return project


def shortest(pulse: Any) -> VacuumResult:
    """Runs a full VACUUM with a retention of one day."""
    (result,) = vacuum_tables(
        None,
        pulse.catalog,
        "pulse",
        dry_run=False,
        retention_hours=24,
        below_minimum="a test",
        mode="full",
        tables=["events"],
    )
    return result


def read_slowly(spark: SparkSession, pulse: Any, seen: list[str], *, batches: int | None = None) -> None:
    """Reads like a live query, one file per batch; stops after some batches or at the end."""
    uri = pulse.lake.storage.spark_uri(KEY)
    folder = pulse.lake.storage.spark_uri(paths.live_checkpoint("pulse", 1, "by_name"))

    def note(frame: DataFrame, batch_id: int) -> None:
        if batches is not None and batch_id >= batches:
            raise RuntimeError("the reader dies")
        seen.extend(row["event_name"] for row in frame.select("event_name").collect())

    stream = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).option("skipChangeCommits", "true")
    writer = stream.load(uri).writeStream.foreachBatch(note).option("checkpointLocation", folder)
    writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.parametrize("protected", [True, False])
def test_a_slow_reader_still_reads_replaced_files(
    spark: SparkSession, pulse: Any, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    seen: list[str] = []
    with pytest.raises(StreamingQueryException, match="the reader dies"):
        read_slowly(spark, pulse, seen, batches=1)
    assert len(seen) == 1
    gone = replaced(pulse.lake, KEY, hours_ago=60)
    if not protected:
        monkeypatch.setattr(vacuum, "holds_on", lambda *_: [])

    result = shortest(pulse)

    if not protected:
        assert (result.files, result.retention_hours) == (len(gone), 24)
        with pytest.raises(Exception, match=r"(?i)does not exist|FAILED_READ_FILE|not found"):
            read_slowly(spark, pulse, seen)
        return
    assert result.files == 0
    assert "the live table by_name" in result.reason
    read_slowly(spark, pulse, seen)
    assert sorted(seen) == [f"e{number}" for number in range(ROWS)]
    assert shortest(pulse).files == len(gone)
    assert not any(path.exists() for path in gone)
    assert len(pulse.rows("pulse", "events")) == ROWS


@pytest.mark.parametrize("protected", [True, False])
def test_a_long_transaction_keeps_its_uncommitted_files(
    spark: SparkSession, pulse: Any, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    begun = utc_now().timestamp() - 36 * 3600
    since = utc_now().fromtimestamp(begun, tz=utc_now().tzinfo).isoformat()
    turn = TurnRecord(
        table="events", turn="t", reason="write_turn", state="granted", by="m", run="pulse__mutations/r/mutate/1",
        renewal=1, ttl_seconds=20, max_turn_seconds=48 * 3600, requested_at=since, granted_at=since,
    )  # fmt: skip
    objects = open_objects(pulse.catalog.environment.lake)
    objects.put(paths.turn_request("pulse", "events"), turn.encode())
    written = uncommitted(pulse, begun)
    if not protected:
        monkeypatch.setattr(vacuum, "holds_on", lambda *_: [])

    result = shortest(pulse)
    commit(pulse, written)

    read = spark.read.format("delta").load(pulse.lake.storage.spark_uri(KEY))
    if not protected:
        assert result.files == 1
        with pytest.raises(Exception, match=r"(?i)does not exist|FAILED_READ_FILE|not found"):
            read.select("event_name").collect()
        return
    assert (result.files, result.retention_hours) == (0, 39)
    assert {row["event_name"] for row in read.select("event_name").collect()} >= {"late"}


def uncommitted(pulse: Any, at: float) -> Any:
    """A file of a transaction that has not committed."""
    schema = arrow_schema(pulse.spec("pulse").table("events").column_types())
    row = {"event_name": "late", "event_time": START, "event_date": START.date()}
    data = pa.Table.from_pylist([row], schema=schema)
    root = f"{pulse.lake.storage.prefix}/{KEY}"
    file = write_file(pulse.lake.filesystem, root, data, partition={"event_date": str(START.date())})
    os.utime(f"{root}/{file.path}", (at, at))
    assert time.time() - at > 24 * 3600
    return file


def commit(pulse: Any, file: Any) -> None:
    table = pulse.lake.open(KEY)
    table.create_write_transaction(
        [file.add_action()], mode="append", schema=table.schema(), partition_by=table.metadata().partition_columns
    )
