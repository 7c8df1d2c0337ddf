"""The training session for the class archive: `python -m deltaworks.build.java_archive_training ARCHIVE`.

It writes, merges, optimizes and streams tiny tables in a temporary folder, runs a Python function on rows, and loads
the S3 and Kafka clients. Its results are discarded.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaworks.specs.environment import EnvironmentSpec, SparkSpec
from deltaworks.specs.storage import AwsSpec, StorageSpec
from deltaworks.tables.spark_session import build_session

_WAIT_SECONDS = 300
#: A closed port: the S3 client's classes are loaded up to its first failed request.
_UNREACHABLE_ENDPOINT = "http://127.0.0.1:9"
_PRELOADED_CLASSES = (
    "org.apache.kafka.clients.admin.KafkaAdminClient",
    "org.apache.kafka.clients.consumer.KafkaConsumer",
    "org.apache.spark.sql.kafka010.KafkaSourceProvider",
)


def main(archive: str) -> int:
    """Runs the training session; its JVM writes the archive when it exits."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spark = _archiving_session(folder, archive)
        exercise(spark, folder)
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        process = gateway.proc
        spark.stop()
        # The JVM exits, and writes the archive, when its standard input is closed.
        process.stdin.close()
        return int(process.wait(_WAIT_SECONDS))


def _archiving_session(folder: Path, archive: str) -> SparkSession:
    conf = {
        "spark.hadoop.fs.s3a.endpoint": _UNREACHABLE_ENDPOINT,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.access.key": "none",
        "spark.hadoop.fs.s3a.secret.key": "none",
        "spark.hadoop.fs.s3a.attempts.maximum": "1",
        "spark.hadoop.fs.s3a.retry.limit": "0",
        "spark.hadoop.fs.s3a.bucket.probe": "0",
    }
    options = f"-XX:ArchiveClassesAtExit={archive} -Xlog:cds*=off -XX:TieredStopAtLevel=1"
    return small_session(folder, java_options=options, conf=conf)


def small_session(folder: Path, *, java_options: str, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Opens a local session with 1 GB of driver memory, `folder` as its lake, and the given JVM options."""
    storage = StorageSpec(root=f"file://{folder}/lake")
    environment = EnvironmentSpec(
        environment="small",
        lake=storage,
        landing=storage,
        messaging=AwsSpec(),
        spark=SparkSpec(driver_memory="1g", shuffle_partitions=2, java_options=java_options, conf=dict(conf or {})),
    )
    return build_session(environment, app_name="small", master="local[2]")


def exercise(spark: SparkSession, folder: Path) -> None:
    """Runs typical driver operations once, so that their classes are loaded."""
    table = exercise_tables(spark, folder)
    spark.read.format("delta").load(table).mapInArrow(
        _identity, "id BIGINT, kind BIGINT, time TIMESTAMP, day STRING"
    ).count()
    _stream(spark, table, folder)
    _load_clients(spark)


def exercise_tables(spark: SparkSession, folder: Path) -> str:
    """Writes, merges into, deletes from and optimizes a Delta table, and aggregates it into another. Returns the
    table's path.
    """
    table = f"{folder}/table"
    rows = spark.range(200).select(
        F.col("id"),
        (F.col("id") % 7).alias("kind"),
        F.current_timestamp().alias("time"),
        F.lit("2026-01-01").alias("day"),
    )
    rows.write.format("delta").partitionBy("day").save(table)
    rows.withColumn("id", F.col("id") + 100).createOrReplaceTempView("changes")
    spark.sql(
        f"MERGE INTO delta.`{table}` AS t USING changes AS c ON t.id = c.id "
        "WHEN MATCHED THEN UPDATE SET kind = c.kind + 1 WHEN NOT MATCHED THEN INSERT *"
    )
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 3")
    spark.sql(f"OPTIMIZE delta.`{table}` ZORDER BY (id)").collect()
    answer = spark.sql(
        "SELECT kind, count(DISTINCT id) AS ids, max(time) AS newest, row_number() OVER (ORDER BY kind) AS place "
        f"FROM delta.`{table}` GROUP BY kind"
    )
    answer.write.format("delta").mode("overwrite").save(f"{folder}/answer")
    return table


def _identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _stream(spark: SparkSession, table: str, folder: Path) -> None:
    def count(batch: DataFrame, _number: int) -> None:
        batch.count()

    query = (
        spark.readStream.format("delta")
        .load(table)
        .writeStream.foreachBatch(count)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(_WAIT_SECONDS)


def _load_clients(spark: SparkSession) -> None:
    jvm = spark._jvm
    assert jvm is not None
    for name in _PRELOADED_CLASSES:
        jvm.java.lang.Class.forName(name)
    path = jvm.org.apache.hadoop.fs.Path("s3a://nowhere/table")
    # Fails because the port is closed; by then all classes are loaded. Java has several exception types for it.
    with contextlib.suppress(Exception):
        path.getFileSystem(spark._jsc.hadoopConfiguration()).exists(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
