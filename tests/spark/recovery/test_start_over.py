"""Readers of a pipeline's tables continue correctly after a start over; Spark recreates tables delta-rs cannot."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.engine.live import start_live_query
from deltaworks.errors import TransientError
from deltaworks.gold.build import rebuild_gold
from deltaworks.recovery.start_over import start_over
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import declare_table, pipeline_spec, present
from tests.unit.recovery.replay_harness import ReplayHarness

DAY, NOON = 86_400, 1_700_049_600


def spec(level: str = "int", partition_by: str = "event_date") -> PipelineSpec:
    orders = declare_table("orders", f"level {level}", partition_by=[partition_by])
    daily = {"name": "daily", "sql": "gold/daily.sql", "reads": ["orders"], "partition_by": "event_date"}
    return pipeline_spec(
        orders,
        event={"name": {"constant": "order"}, "time": {"path": "time", "unit": "epoch_seconds"}, "id": "id"},
        live=[{"name": "hourly", "reads": "orders"}],
        stream={"lease_ttl_seconds": 3},
        gold={"tables": [daily]},
    )


BEFORE, AFTER = spec("int"), spec("double")


@pytest.fixture
def stage(tmp_path: Path) -> ReplayHarness:
    """Three orders of two dates, one with a level that is no integer."""
    stage = ReplayHarness(tmp_path)
    sql = stage.landing / "include" / "pipelines" / "shop" / "gold" / "daily.sql"
    sql.parent.mkdir(parents=True)
    sql.write_text("SELECT event_date, event_id, cast(level AS double) AS level FROM orders")
    events: list[dict[str, Any]] = [
        {"id": "a", "time": NOON, "level": 1},
        {"id": "b", "time": NOON - DAY, "level": 2},
        {"id": "c", "time": NOON - DAY, "level": 3.5},
    ]
    stage.ingest(BEFORE, "".join(map(json.dumps, events)).encode())
    PipelineHome.open(stage.lake.storage, "shop").specs.record_start(BEFORE, owner_epoch=0)
    return stage


def over(stage: ReplayHarness, declared: PipelineSpec, **options: Any) -> int:
    return start_over(stage.catalog(declared), "shop", dry_run=False, max_rows=100, **options).recreated


def counted(spark: SparkSession, stage: ReplayHarness, declared: PipelineSpec) -> int:
    """Returns the events in the live table after its query has processed all input."""
    query = start_live_query(spark, stage.catalog(declared), "shop", declared.live[0], available_now=True)
    query.awaitTermination(120)
    found = present(stage.lake.rows(paths.table("shop", "hourly"), columns=["events"]))
    return sum(found.column("events").to_pylist())


def answers(spark: SparkSession, stage: ReplayHarness) -> Counter[tuple[str, float]]:
    key = stage.lake.storage.spark_uri(paths.table("shop", "daily"))
    return Counter((row["event_id"], row["level"]) for row in spark.read.format("delta").load(key).collect())


@pytest.mark.integration
def test_gold_holds_what_the_new_generation_has_and_live_tables_count_every_event_once(
    spark: SparkSession, stage: ReplayHarness
) -> None:
    rebuild_gold(spark, stage.catalog(BEFORE), "shop")
    assert counted(spark, stage, BEFORE) == 2
    assert answers(spark, stage) == Counter([("a", 1.0), ("b", 2.0)])

    assert over(stage, AFTER) == 3
    rebuild_gold(spark, stage.catalog(AFTER), "shop")
    assert answers(spark, stage) == Counter()
    stage.read_from_the_start(AFTER, generation=2)
    rebuild_gold(spark, stage.catalog(AFTER), "shop")

    assert answers(spark, stage) == Counter([("a", 1.0), ("b", 2.0), ("c", 3.5)])
    assert counted(spark, stage, AFTER) == 3
    assert counted(spark, stage, AFTER) == 3


def test_other_partition_columns_come_with_spark_in_one_commit(spark: SparkSession, stage: ReplayHarness) -> None:
    repartitioned = spec("int", "event_name")
    before = present(stage.lake.open(paths.table("shop", "orders")))
    with pytest.raises(TransientError, match="SPARK_UNAVAILABLE"):
        over(stage, repartitioned)

    done = over(stage, repartitioned, spark=lambda: spark)
    stage.read_from_the_start(repartitioned, generation=2)

    table = present(stage.lake.open(paths.table("shop", "orders")))
    assert (done, table.metadata().partition_columns) == (1, ["event_name"])
    assert [row["event_id"] for row in stage.rows("orders")] == ["a", "b"]
    table.load_as_version(before.version())
    assert sorted(table.to_pyarrow_table().column("event_id").to_pylist()) == ["a", "b"]


def test_a_table_with_a_constraint_is_made_anew_by_spark_and_keeps_it(
    spark: SparkSession, stage: ReplayHarness
) -> None:
    uri = stage.lake.storage.spark_uri(paths.table("shop", "orders"))
    spark.sql(f"ALTER TABLE delta.`{uri}` ADD CONSTRAINT known CHECK (level > 0)")

    over(stage, BEFORE, spark=lambda: spark)

    assert spark.read.format("delta").load(uri).count() == 0
    table = present(stage.lake.open(paths.table("shop", "orders")))
    assert table.metadata().configuration["delta.constraints.known"] == "level > 0"
