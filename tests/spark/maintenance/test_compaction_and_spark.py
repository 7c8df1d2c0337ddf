"""Compaction and VACUUM without a JVM: tables are unchanged for Spark, and the same files are deleted."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control.clock import utc_now
from deltaworks.control.objects import open_objects
from deltaworks.control.provenance import OPTIMIZE, user_metadata
from deltaworks.maintenance.table_health.measure import table_health
from deltaworks.maintenance.vacuum import vacuum_with_spark
from deltaworks.maintenance.vacuum_files import vacuum_files
from deltaworks.tables.changes import Partition
from deltaworks.tables.compaction import compact_partitions
from deltaworks.tables.lake import Lake
from deltaworks.tables.spark_session import override_settings
from deltaworks.tables.vacuum_candidates import candidates_by_listing, candidates_by_log
from deltaworks.testing import local_lake, present, write_files

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


HOURS = 24
#: The age of all files.
OLD_HOURS = 100
VALUES = ("plain", "a b", "x%20y", "ü~:#?", "_under", "a=b/c")
PART_SIZE = "spark.databricks.delta.checkpoint.partSize"
CHECKED = "spark.databricks.delta.retentionDurationCheck.enabled"
#: By default Spark lists folders in 10,000 tasks: a minute on two cores.
LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return local_lake(tmp_path / "lake")


@pytest.fixture
def uri(spark: SparkSession, lake: Lake) -> str:
    """A table with a change feed, deletion vectors, special partition values and a multi-part checkpoint."""
    uri = lake.storage.spark_uri(KEY)
    spark.sql(
        f"CREATE TABLE delta.`{uri}` (id INT, day STRING) USING delta PARTITIONED BY (day) TBLPROPERTIES "
        "('delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true', "
        "'delta.checkpointInterval' = '3', 'delta.deletedFileRetentionDuration' = 'interval 1 day')"
    )
    # Three rows per partition in a file, twice.
    for first in (0, 3):
        rows = [(first + number, value) for value in VALUES for number in range(3)]
        spark.createDataFrame(rows, "id INT, day STRING").coalesce(1).write.format("delta").mode("append").save(uri)
    with override_settings(spark, {PART_SIZE: "5"}):
        spark.sql(f"DELETE FROM delta.`{uri}` WHERE id = 1")
        spark.sql(f"UPDATE delta.`{uri}` SET id = 40 WHERE id = 4")
        spark.sql(f"DELETE FROM delta.`{uri}` WHERE day IN ('a b', 'x%20y')")
    spark.sql(f"DELETE FROM delta.`{uri}` WHERE id = 0")
    log = folder(lake) / "_delta_log"
    assert len(list(log.glob("*.checkpoint.*.parquet"))) > 1
    assert list((folder(lake) / "_change_data").rglob("*.parquet"))
    return uri


def folder(lake: Lake) -> Path:
    return Path(lake.storage.prefix) / KEY


def age(lake: Lake, *, hours: float, below: str = "") -> None:
    then = time.time() - hours * 3600
    for path in (folder(lake) / below).rglob("*"):
        os.utime(path, (then, then))


def leave_orphans(lake: Lake) -> None:
    for name in ("dead %20.parquet", "day=plain/.dead.crc", "_tmp/dead", "_change_data/dead", ".hidden/dead"):
        write_files(folder(lake), {name: b"x"})
    (folder(lake) / f"deletion_vector_{uuid.uuid4()}.bin").write_bytes(b"x")


def by_spark(spark: SparkSession, uri: str, mode: str, hours: int = HOURS) -> set[str]:
    with override_settings(spark, {CHECKED: "false", LISTING_TASKS: "2"}):
        listed = spark.sql(f"VACUUM delta.`{uri}` {mode} RETAIN {hours} HOURS DRY RUN").collect()
    root = uri.removeprefix("file://")
    paths = (row["path"].removeprefix("file:").removeprefix(f"{root}/") for row in listed)
    return {path for path in paths if Path(root, path).is_file()}


def ours(lake: Lake, how: Any, hours: float = HOURS) -> set[str]:
    table = present(lake.open(KEY))
    return set(how(lake, KEY, table, before_ms=int((time.time() - hours * 3600) * 1000)).files)


@pytest.mark.integration
def test_full_and_lite_delete_the_same_files_as_spark(spark: SparkSession, lake: Lake, uri: str) -> None:
    leave_orphans(lake)
    age(lake, hours=OLD_HOURS)
    # Removed files are within the retention: only orphans and the change feed are deleted.
    kept = ours(lake, candidates_by_listing)
    assert kept == by_spark(spark, uri, "FULL")
    assert {path.split("/")[0] for path in kept} >= {"_change_data", "dead %20.parquet"}

    # No retention: only the newest version is needed.
    gone = ours(lake, candidates_by_listing, hours=0)
    assert gone == by_spark(spark, uri, "FULL", hours=0)
    assert ours(lake, candidates_by_log, hours=0) == by_spark(spark, uri, "LITE", hours=0)
    assert any(path.endswith(".bin") for path in gone)
    assert sum(path.startswith("day=") for path in gone) > 2


@pytest.mark.integration
def test_either_vacuum_continues_after_the_other(spark: SparkSession, lake: Lake, uri: str) -> None:
    rows = sorted(spark.read.format("delta").load(uri).collect())
    leave_orphans(lake)
    age(lake, hours=OLD_HOURS)
    options: dict[str, Any] = {"hours": HOURS, "dry_run": False}

    deleted, _ = vacuum_files(
        lake, open_objects(lake.storage), KEY, full=True, now=utc_now(), user_metadata="{}", **options
    )

    assert deleted > 0
    assert by_spark(spark, uri, "FULL") == ours(lake, candidates_by_listing) == set()
    assert by_spark(spark, uri, "LITE") == ours(lake, candidates_by_log)
    table = present(lake.open(KEY))
    vacuum_with_spark(spark, lake, KEY, full=False, version=table.version(), metadata="{}", **options)
    assert ours(lake, candidates_by_log) == set()
    operations = [row["operation"] for row in spark.sql(f"DESCRIBE HISTORY delta.`{uri}` LIMIT 4").collect()]
    assert operations == ["VACUUM END", "VACUUM START"] * 2
    assert sorted(spark.read.format("delta").load(uri).collect()) == rows
