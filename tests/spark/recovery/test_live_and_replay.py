"""After a replay and a restore, live tables, queries, streams and change feeds have the expected rows."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from deltaworks.control import paths
from deltaworks.engine.live import start_live_query
from deltaworks.recovery.quarantine.open_rows import QuarantineFilter
from deltaworks.recovery.quarantine.replay import replay_quarantine
from deltaworks.recovery.restore.plan import TableRestoreRequest
from deltaworks.recovery.restore.restore_points import RestorePoint
from deltaworks.recovery.restore.table_restore import TableRestore
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import pipeline_spec, present
from tests.spark.live_progress import LiveProgress
from tests.unit.recovery.replay_harness import ReplayHarness, orders
from tests.unit.recovery.restore.source_harness import SourceHarness

HOUR, NOON = 3_600, 1_700_049_600


def spec(level: str) -> PipelineSpec:
    return pipeline_spec(
        {"name": "orders", "catch_all": True, "columns": orders(level)["columns"]},
        event={"name": {"constant": "order"}, "time": {"path": "time", "unit": "epoch_seconds"}},
        live=[{"name": "hourly", "reads": "orders", "watermark_minutes": 180}],
    )


def work_off(spark: SparkSession, stage: ReplayHarness, declared: PipelineSpec) -> LiveProgress:
    query = start_live_query(spark, stage.catalog(declared), "shop", declared.live[0], available_now=True)
    query.awaitTermination(120)
    counted = [LiveProgress.from_spark(progress) for progress in query.recentProgress]
    return max(counted, key=lambda progress: progress.late_rows)


def counts(stage: ReplayHarness) -> dict[int, int]:
    """Returns events by hours after noon."""
    rows = present(stage.lake.rows(paths.table("shop", "hourly")))
    return {(int(row["window_start"].timestamp()) - NOON) // HOUR: row["events"] for row in rows.to_pylist()}


@pytest.mark.integration
def test_rows_landed_by_a_replay_are_counted_while_their_window_is_open(spark: SparkSession, tmp_path: Path) -> None:
    stage, broken, mended = ReplayHarness(tmp_path), spec("int"), spec("double")
    hours = [(0, 1), (-1, 1.5), (-2, 2.5), (-7, 3.5)]
    events = [{"time": NOON + hour * HOUR, "level": level} for hour, level in hours]
    stage.ingest(broken, "".join(map(json.dumps, events)).encode())
    work_off(spark, stage, broken)
    work_off(spark, stage, broken)
    assert counts(stage) == {0: 1}

    replay_quarantine(stage.catalog(mended), "shop", QuarantineFilter(), dry_run=False)
    progress = work_off(spark, stage, mended)

    assert len(stage.rows("orders")) == 4
    assert counts(stage) == {0: 1, -1: 1, -2: 1}
    assert progress.late_rows == 1


ORDERS = paths.table("shop", "orders")
Rows = Counter[tuple[int, int]]


def places(frame: DataFrame) -> Rows:
    return Counter((row["_seq"], row["_position"]) for row in frame.select("_seq", "_position").collect())


def followed(spark: SparkSession, stage: SourceHarness, uri: str, seen: Rows) -> None:
    """A stream that ignores changes continues from its offset."""

    def note(batch: DataFrame, _: int) -> None:
        seen.update(places(batch))

    source = spark.readStream.format("delta").option("skipChangeCommits", "true").load(uri)
    query = (
        source.writeStream.foreachBatch(note)
        .option("checkpointLocation", f"file://{stage.root}/follower")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)


@pytest.mark.integration
def test_spark_reads_and_follows_a_table_that_went_back_without_missing_or_doubling_a_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    stage = SourceHarness.at(tmp_path)
    assert isinstance(stage, SourceHarness)
    processor = stage.land_all(0, 1, 2)
    table = present(stage.lake.open(ORDERS))
    table.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    uri = stage.storage.spark_uri(ORDERS)
    seen: Rows = Counter()
    followed(spark, stage, uri, seen)
    stage.land_object(processor, 3)
    table = present(stage.lake.open(ORDERS))
    table.delete("_seq <= 2")
    stage.land_object(processor, 4)

    request = TableRestoreRequest(point=RestorePoint(batch=3), max_rows=100)
    done = TableRestore(stage.catalog(), "shop", "orders").run(request)
    stage.land_object(processor, 5)
    followed(spark, stage, uri, seen)

    everything = stage.expected(1, 2, 3, 4, 5)
    expected = Counter({(seq, position + 2): 1 for seq, position in everything})
    assert places(spark.read.format("delta").load(uri)) == expected == seen
    feed = spark.read.format("delta").option("readChangeFeed", "true")
    changes = feed.option("startingVersion", done.version).option("endingVersion", done.version).load(uri)
    assert {(row["_seq"], row["_change_type"]) for row in changes.collect()} == {(1, "insert"), (2, "insert")}
    newest = spark.sql(f"DESCRIBE HISTORY delta.`{uri}`").where(f"version = {done.version}").collect()[0]
    assert newest["operation"] == "RESTORE"
    assert '"operation":"restore"' in newest["userMetadata"]
