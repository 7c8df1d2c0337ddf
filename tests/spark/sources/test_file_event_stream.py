"""Batches of file events in a real query: limits, replays, AvailableNow, prefixes, waiting for files."""

from __future__ import annotations

import json
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from deltaworks.control.job import as_deltaworks_error
from deltaworks.sources.objects.file_event_log import FileEventLog, file_events_key
from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, ReceivedEvent
from deltaworks.sources.objects.relay.messages import FileEvent
from deltaworks.sources.objects.slices import FileEventPlanner, SliceLimits
from deltaworks.sources.record_source import planned_frame
from deltaworks.testing import local_lake
from tests.waiting import PATIENCE_SECONDS, eventually

NOON = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


class StreamHarness:
    """A project with a log, and queries on it that note what each batch held."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.lake = local_lake(root / "lake")
        self.batches: list[tuple[int, list[str]]] = []
        self.tables: list[pa.Table] = []

    def log(self) -> FileEventLogWriter:
        return FileEventLogWriter(self.lake, "landing", epoch=1)

    def land(self, *names: str, size: int = 10) -> None:
        self.log().append(
            [
                ReceivedEvent(
                    FileEvent("landing", name, size, f"tag of {name}", None, NOON, "ObjectCreated:Put", None),
                    f"message of {name}",
                    NOON + timedelta(seconds=1),
                )
                for name in names
            ]
        )

    def batches_of(
        self, *, prefix: str = "", max_files: int = 500, max_bytes: int = 1 << 28, start_seq: int = 0
    ) -> FileEventPlanner:
        return FileEventPlanner(
            FileEventLog(self.lake, "landing"),
            bucket="landing",
            prefix=prefix,
            limits=SliceLimits(max_files=max_files, max_bytes=max_bytes),
            start={"seq": start_seq} if start_seq else None,
        )

    def start(self, *, checkpoint: str = "c1", trigger: dict[str, Any] | None = None, **options: Any) -> StreamingQuery:
        planner = self.batches_of(**options)

        def end_of(batch_id: int) -> dict[str, Any]:
            lines = (self.root / checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
            return dict(json.loads(lines[2]))

        def note(batch: DataFrame, batch_id: int) -> None:
            table = planner.rows(end_of(batch_id - 1) if batch_id else None, end_of(batch_id))
            self.tables.append(table)
            self.batches.append((batch_id, table.column("key").to_pylist()))

        frame = planned_frame(self.spark, planner)
        writer = frame.writeStream.foreachBatch(note).option("checkpointLocation", str(self.root / checkpoint))
        return writer.trigger(**trigger or {"availableNow": True}).start()

    def drain(self, **options: Any) -> list[tuple[int, list[str]]]:
        """What one AvailableNow run gives."""
        self.batches.clear()
        query = self.start(**options)
        assert query.awaitTermination(int(PATIENCE_SECONDS))
        return list(self.batches)


@pytest.fixture
def harness(spark: SparkSession, tmp_path: Path) -> StreamHarness:
    return StreamHarness(spark, tmp_path)


def test_every_field_of_an_event_arrives_unchanged(harness: StreamHarness) -> None:
    harness.land("games/Happy Face+ä.json")
    harness.drain()
    (row,) = harness.tables[0].to_pylist()
    assert row == {
        "seq": 1,
        "bucket": "landing",
        "key": "games/Happy Face+ä.json",
        "size": 10,
        "etag": "tag of games/Happy Face+ä.json",
        "version_id": None,
        "event_time": NOON,
        "event_name": "ObjectCreated:Put",
        "sequencer": None,
        "message_id": "message of games/Happy Face+ä.json",
        "origin": "sqs",
        "received_at": NOON + timedelta(seconds=1),
        "batch": 1,
    }


def test_available_now_drains_in_batches_of_limited_files_and_ends(harness: StreamHarness) -> None:
    harness.land(*(f"games/{number}" for number in range(5)))
    assert harness.drain(max_files=2) == [
        (0, ["games/0", "games/1"]),
        (1, ["games/2", "games/3"]),
        (2, ["games/4"]),
    ]
    assert harness.drain(max_files=2) == []
    harness.land("games/5")
    assert harness.drain(max_files=2) == [(3, ["games/5"])]


def test_batches_are_limited_by_bytes_too(harness: StreamHarness) -> None:
    harness.land("games/1", "games/2", "games/3", size=40)
    harness.land("games/4", size=5000)
    assert [files for _, files in harness.drain(max_bytes=100)] == [["games/1", "games/2"], ["games/3"], ["games/4"]]


def test_only_the_declared_prefix_of_the_bucket_is_read(harness: StreamHarness) -> None:
    harness.land("games/1", "edits/1", "games/2", "edits/2")
    assert harness.drain(prefix="games/") == [(0, ["games/1", "games/2"])]
    assert harness.drain(prefix="edits/", checkpoint="c2") == [(0, ["edits/1", "edits/2"])]
    assert harness.drain(prefix="none/", checkpoint="c3") == [(0, [])]


def test_a_new_query_can_start_after_a_seq(harness: StreamHarness) -> None:
    harness.land("games/1", "games/2", "games/3")
    assert harness.drain(start_seq=2) == [(0, ["games/3"])]


def test_a_batch_that_was_not_committed_is_replayed_with_the_same_rows(harness: StreamHarness) -> None:
    harness.land("games/1", "games/2", "games/3")
    first = harness.drain(max_files=2)
    harness.land("games/4")
    (harness.root / "c1" / "commits" / "1").unlink()
    (harness.root / "c1" / "commits" / ".1.crc").unlink(missing_ok=True)
    assert first[1] == (1, ["games/3"])
    assert harness.drain(max_files=2) == [(1, ["games/3"]), (2, ["games/4"])]


def test_a_query_waits_for_a_log_that_does_not_exist_yet(harness: StreamHarness) -> None:
    """A new query begins with a batch even where there is nothing: Spark makes it to record the first offset."""
    assert harness.drain() == [(0, [])]
    assert harness.drain() == []
    harness.land("games/1")
    assert harness.drain() == [(1, ["games/1"])]


def test_a_recreated_log_ends_the_query_with_its_condition(harness: StreamHarness) -> None:
    harness.land("games/1", "games/2")
    harness.drain()
    shutil.rmtree(Path(harness.lake.storage.prefix) / file_events_key("landing"))
    harness.land("games/3", "games/4", "games/5")

    with pytest.raises(StreamingQueryException) as raised:
        harness.drain()

    told = as_deltaworks_error(raised.value)
    assert (told.condition, told.retryable) == ("LOG_REPLACED", False)
    assert "start-over" in told.hint


def test_a_running_query_idles_without_batches_and_reports_its_backlog(harness: StreamHarness) -> None:
    harness.land("games/1", "edits/1")
    query = harness.start(prefix="games/", trigger={"processingTime": "500 milliseconds"})
    try:
        eventually(lambda: len(harness.batches) == 1, "the first batch")
        harness.land("edits/2")
        time.sleep(3)
        assert harness.batches == [(0, ["games/1"])]
        harness.land("games/2", "games/3")
        eventually(lambda: len(harness.batches) == 2, "the second batch")
        eventually(lambda: (query.lastProgress or {"batchId": -1})["batchId"] >= 1, "its progress")
        (source,) = query.lastProgress["sources"]
        assert json.loads(source["endOffset"]) == {"seq": 5, "log": FileEventLog(harness.lake, "landing").table_id}
        assert json.loads(source["latestOffset"]) == {"seq": 5}
    finally:
        query.stop()
    assert harness.batches[1] == (1, ["games/2", "games/3"])
