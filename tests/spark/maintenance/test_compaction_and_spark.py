"""Tables compacted without Spark are unchanged for Spark readers, streams, change feeds and writers."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltaworks.control.objects import open_objects
from deltaworks.control.provenance import OPTIMIZE, user_metadata
from deltaworks.maintenance.table_health.measure import table_health
from deltaworks.tables.changes import Partition
from deltaworks.tables.compaction import compact_partitions
from deltaworks.testing import local_lake

KEY = "tables/shop/orders"
PLACES: tuple[Partition, ...] = ((("day", "2026-01-01"),), (("day", "2026-01-02"),))
COLUMNS = (
    "DATE'2026-01-01' + CAST(id % 3 AS INT) AS day",
    "id",
    "TIMESTAMP'2026-01-01 00:00:00.123456' + make_interval(0, 0, 0, 0, 0, 0, id) AS at",
    "CAST(CAST(id AS DECIMAL(20, 4)) / 7 AS DECIMAL(20, 4)) AS price",
    "named_struct('a', id, 'b', array(CAST(id AS STRING), NULL)) AS nested",
    "map(CAST(id AS STRING), id) AS counts",
    "IF(id % 5 = 0, NULL, CONCAT('é', id)) AS name",
)


@pytest.mark.integration
def test_spark_sees_the_same_rows_and_no_changes(spark: SparkSession, tmp_path: Path) -> None:
    lake = local_lake(tmp_path / "lake")
    uri = lake.storage.spark_uri(KEY)
    for batch in range(5):
        rows = spark.range(batch * 30, batch * 30 + 30).selectExpr(*COLUMNS)
        writer = rows.coalesce(1).write.format("delta").mode("append").partitionBy("day")
        writer.option("delta.enableChangeDataFeed", "true").save(uri)
    before = sorted(map(str, spark.read.format("delta").load(uri).collect()))
    assert _streamed(spark, uri, tmp_path) == 150
    version = table_health(lake, KEY).version  # type: ignore[union-attr]

    outcome = compact_partitions(
        lake,
        open_objects(lake.storage),
        KEY,
        PLACES,
        below_bytes=16 << 20,
        user_metadata=user_metadata(pipeline="shop", batch=1, operation=OPTIMIZE, group="g"),
    )

    assert (outcome.compacted, outcome.unsupported, outcome.version) == (PLACES, {}, version + 1)
    spark.catalog.clearCache()
    assert sorted(map(str, spark.read.format("delta").load(uri).collect())) == before
    assert _streamed(spark, uri, tmp_path) == 150, "the stream reads nothing again"
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", version + 1)
    assert feed.load(uri).count() == 0
    (newest,) = spark.sql(f"DESCRIBE HISTORY delta.`{uri}` LIMIT 1").collect()
    assert (newest["operation"], newest["operationMetrics"]["numRemovedFiles"]) == ("OPTIMIZE", "10")
    spark.sql(f"DELETE FROM delta.`{uri}` WHERE id = 3")
    spark.sql(f"OPTIMIZE delta.`{uri}`").collect()
    assert spark.read.format("delta").load(uri).count() == 149
    assert spark.read.format("delta").option("versionAsOf", version).load(uri).count() == 150
    skipped = spark.read.format("delta").load(uri).where("day = DATE'2026-01-02' AND id BETWEEN 40 AND 41")
    assert [row["id"] for row in skipped.collect()] == [40]


def _streamed(spark: SparkSession, uri: str, folder: Path) -> int:
    """Returns all rows a stream of the table has read."""
    target = str(folder / "streamed")
    query = (
        spark.readStream.format("delta")
        .load(uri)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(target)
    )
    query.awaitTermination(180)
    return spark.read.parquet(target).count()
