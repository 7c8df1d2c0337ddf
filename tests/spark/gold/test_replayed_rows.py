"""Replayed rows are in gold as if they had landed at once: the first duplicate wins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.gold.build import rebuild_gold
from deltaworks.recovery.quarantine.open_rows import QuarantineFilter
from deltaworks.recovery.quarantine.replay import replay_quarantine
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import declare_table, pipeline_spec
from tests.unit.recovery.replay_harness import ReplayHarness

DAY = 86_400
NOON = 1_700_049_600


def spec(*levels: str) -> PipelineSpec:
    orders = declare_table("orders", "level string", rules=[{"name": "known", "check": f"level IN {levels}"}])
    daily = {"name": "daily", "sql": "gold/daily.sql", "reads": ["orders"], "partition_by": "event_date"}
    return pipeline_spec(
        orders,
        event={"name": {"constant": "order"}, "time": {"path": "time", "unit": "epoch_seconds"}, "id": "id"},
        gold={"dedupe": {"by": "event_id", "within_days": 1}, "tables": [daily]},
    )


def test_gold_follows_a_replay_and_keeps_the_first_duplicate(spark: SparkSession, tmp_path: Path) -> None:
    stage = ReplayHarness(tmp_path)
    sql = stage.landing / "include" / "pipelines" / "shop" / "gold" / "daily.sql"
    sql.parent.mkdir(parents=True)
    sql.write_text("SELECT event_date, event_id, level FROM orders")
    first: list[dict[str, Any]] = [
        {"id": "e1", "time": NOON, "level": "new"},
        {"id": "e2", "time": NOON, "level": "old"},
        {"id": "e3", "time": NOON - DAY, "level": "new"},
    ]
    copies = [{"id": "e1", "time": NOON, "level": "old"}, {"id": "e3", "time": NOON, "level": "old"}]
    before, mended = spec("old", "other"), spec("old", "new")
    stage.ingest(before, "".join(map(json.dumps, first)).encode())
    stage.ingest(before, "".join(map(json.dumps, copies)).encode())
    rebuild_gold(spark, stage.catalog(mended), "shop")
    assert answers(spark, stage) == {
        ("2023-11-15", "e1", "old"),
        ("2023-11-15", "e2", "old"),
        ("2023-11-15", "e3", "old"),
    }

    replay_quarantine(stage.catalog(mended), "shop", QuarantineFilter(), dry_run=False)
    result = rebuild_gold(spark, stage.catalog(mended), "shop")

    assert not result.table("daily").skipped
    assert answers(spark, stage) == {
        ("2023-11-15", "e1", "new"),
        ("2023-11-15", "e2", "old"),
        ("2023-11-14", "e3", "new"),
    }


def answers(spark: SparkSession, stage: ReplayHarness) -> set[tuple[str, str, str]]:
    found = spark.read.format("delta").load(stage.environment.lake.spark_uri(paths.table("shop", "daily"))).collect()
    assert len({row["event_id"] for row in found}) == len(found)
    return {(row["event_date"].isoformat(), row["event_id"], row["level"]) for row in found}
