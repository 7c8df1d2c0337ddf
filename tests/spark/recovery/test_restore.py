"""Spark reads a table restored by Deltaworks' own commit: queries, streams that follow it, and its change feed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from deltaworks.control import paths
from deltaworks.recovery.restore.restore_points import RestorePoint
from deltaworks.recovery.restore.table_plan import TableRestoreRequest
from deltaworks.recovery.restore.table_restore import TableRestore
from tests.unit.recovery.restore.source_harness import SourceHarness

pytestmark = pytest.mark.integration
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


def test_spark_reads_and_follows_a_table_that_went_back_without_missing_or_doubling_a_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    stage = SourceHarness.at(tmp_path)
    assert isinstance(stage, SourceHarness)
    processor = stage.land_all(0, 1, 2)
    table = stage.lake.open(ORDERS)
    assert table is not None
    table.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    uri = stage.storage.spark_uri(ORDERS)
    seen: Rows = Counter()
    followed(spark, stage, uri, seen)
    stage.land_object(processor, 3)
    table = stage.lake.open(ORDERS)
    assert table is not None
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
