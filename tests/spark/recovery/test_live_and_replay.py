"""Replayed rows reach the live table while their window is open; later ones are only in bronze and gold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.engine.live import start_live_query
from deltaworks.recovery.quarantine.open_rows import QuarantineFilter
from deltaworks.recovery.quarantine.replay import replay_quarantine
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import pipeline_spec
from tests.spark.live_progress import LiveProgress
from tests.unit.recovery.replay_harness import ReplayHarness, orders

pytestmark = pytest.mark.integration
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
    rows = stage.lake.rows(paths.table("shop", "hourly"))
    assert rows is not None
    return {(int(row["window_start"].timestamp()) - NOON) // HOUR: row["events"] for row in rows.to_pylist()}


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
