"""One writer of the concurrent-writers test in a separate process: commits small appends to one table and reports which
were acknowledged.

Every commit carries one row with a unique id. After an unacknowledged commit the writer continues with the next id. The
table may or may not hold the failed one, but must hold each acknowledged one once.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from deltaworks.specs.catalog import project_root
from deltaworks.specs.spark_conf import CHECKPOINT_FILE_MANAGER, LOG_STORE_S3A, S3A_LOG_STORE_KEY, project_paths
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from deltaworks.testing import present
from sandbox.servers.object_store import lake_storage

DELTAS_LOG_STORE = "io.delta.storage.S3SingleDriverLogStore"
SPARKS_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
ROOT = "s3://deltaworks-lake"
TABLE = "tables/proof/appends"
CHECKPOINT = "control/proof/checkpoint"
#: Several JVMs on few cores for a minute or two: full JIT compilation would cost more than it saves.
SHORT_LIVED_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
ATTEMPTS = 10
STREAM_CHECKPOINT = "control/proof/stream"
LOCAL_LOG = "local/_delta_log"
LOCAL_LINES = 20_000
SCHEMA = pa.schema([pa.field("id", pa.string()), pa.field("writer", pa.string())])
#: Printed by a writer that is ready; it then waits for a line of input, so that all begin together.
READY = "READY"


def small_session(name: str, *, protected: bool, classes: Path | None = None) -> SparkSession:
    """Returns a minimal Spark session, with Deltaworks' storage classes, or with Delta's and Spark's.

    `classes` is a folder of additional Java classes.
    """
    jars, log4j = project_paths(project_root())
    builder = SparkSession.builder.appName(name).master("local[1]")
    conf = {
        "spark.driver.extraClassPath": f"{jars}/*" + (f":{classes}" if classes else ""),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{log4j} {SHORT_LIVED_JVM}",
        "spark.driver.memory": "600m",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.databricks.delta.stats.collect": "false",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        S3A_LOG_STORE_KEY: LOG_STORE_S3A if protected else DELTAS_LOG_STORE,
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILE_MANAGER if protected else SPARKS_FILE_MANAGER,
        **(lake_storage(ROOT).spark_conf() if "DELTAWORKS_LAKE_ENDPOINT" in os.environ else {}),
    }
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def spark_appends(name: str, *, protected: bool) -> Callable[[int], None]:
    """Appends by Spark without application transactions: only the log store excludes conflicts."""
    spark = small_session(name, protected=protected)
    uri = lake_storage(ROOT).spark_uri(TABLE)
    spark.read.format("delta").load(uri).count()

    def append(number: int) -> None:
        row = spark.range(1).select(F.lit(f"{name}-{number}").alias("id"), F.lit(name).alias("writer"))
        row.write.format("delta").mode("append").save(uri)

    return append


def guarded_appends(name: str) -> Callable[[int], None]:
    """Appends by delta-rs with Deltaworks' rule: a step is looked up in the snapshot from which its commit is made.

    A failed step is repeated from a new snapshot, as a restarted job does. Errors also occur without faults: a
    file-backed server lists a folder while it changes, and delta-rs refuses a log with a gap.
    """
    lake = Lake(lake_storage(ROOT))

    def append(number: int) -> None:
        row = pa.table({"id": [f"{name}-{number}"], "writer": [name]}, schema=SCHEMA)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                table = present(lake.open(TABLE))
                lake.append(table, TABLE, row, step=Step(name, number), user_metadata="{}")
            except DeltaError:
                if attempt == ATTEMPTS:
                    raise
                time.sleep(0.1 * attempt)
            else:
                return

    return append


def plain_appends(name: str) -> Callable[[int], None]:
    """Appends by unmodified delta-rs, which repeats a commit after a suspected conflict."""
    storage = lake_storage(ROOT)

    def append(number: int) -> None:
        row = pa.table({"id": [f"{name}-{number}"], "writer": [name]}, schema=SCHEMA)
        write_deltalake(storage.uri(TABLE), row, mode="append", storage_options=storage.deltalake_options())

    return append


def checkpoint_adds(name: str, *, protected: bool) -> Callable[[int], None]:
    """Writes Spark's commit log of a streaming query; every driver writes the same bytes for a batch."""
    spark = small_session(name, protected=protected)
    jvm = spark.sparkContext._jvm
    package = getattr(jvm, "org.apache.spark.sql.execution.streaming.checkpointing")
    log = package.CommitLog(spark._jsparkSession, f"{lake_storage(ROOT).spark_uri(CHECKPOINT)}/commits", False)
    metadata = package.CommitMetadata(0)

    def add(number: int) -> None:
        if not log.add(number, metadata):
            raise AlreadyTaken(number)

    return add


def local_commits(name: str, *, protected: bool) -> Callable[[int], None]:
    """Commits to a log on local disk directly through the log store; each is large enough to be observed half-written.

    The unprotected variant delays between the two steps of Delta's own log store: without the delay they are
    microseconds apart, and two drivers conflict once in thousands of commits.
    """
    spark = small_session(name, protected=protected, classes=None if protected else _slow_rename(Path.cwd() / name))
    jvm = spark.sparkContext._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    if not protected:
        conf.set("fs.AbstractFileSystem.file.impl", "SlowRename")
    store = jvm.io.deltaworks.storage.CreateNewLogStore(conf) if protected else jvm.io.delta.storage.HDFSLogStore(conf)
    lines = jvm.java.util.Collections.nCopies(LOCAL_LINES, f'{{"writer":"{name}"}}')
    (Path.cwd() / LOCAL_LOG).mkdir(parents=True, exist_ok=True)
    folder = (Path.cwd() / LOCAL_LOG).as_uri()

    def append(number: int) -> None:
        try:
            store.write(jvm.org.apache.hadoop.fs.Path(f"{folder}/{number:020}.json"), lines.iterator(), False, conf)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() == "java.nio.file.FileAlreadyExistsException":
                raise AlreadyTaken(number) from error
            raise

    return append


def _slow_rename(folder: Path) -> Path:
    """Returns the folder of its compiled class."""
    source, hadoop = Path(__file__).with_name("SlowRename.java"), Path(pyspark.__file__).with_name("jars")
    subprocess.run(["javac", "-cp", f"{hadoop}/*", "-d", str(folder), str(source)], check=True)
    return folder


def stream_runs(name: str, *, protected: bool) -> Callable[[int], None]:
    """Runs a streaming query per batch, with its checkpoint on S3 and once on local disk."""
    spark = small_session(name, protected=protected)
    checkpoints = [lake_storage(ROOT).spark_uri(STREAM_CHECKPOINT), (Path.cwd() / STREAM_CHECKPOINT).as_uri()]

    def run(_: int) -> None:
        for checkpoint in checkpoints:
            source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
            query = (
                source.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(once=True).start()
            )
            query.awaitTermination()

    return run


class AlreadyTaken(Exception):
    """Raised when another driver has already created the batch or commit."""


def attempts(append: Callable[[int], None], numbers: range) -> Iterator[tuple[int, str]]:
    """Yields each number with `ok`, or the error class that prevented its acknowledgement."""
    for number in numbers:
        try:
            append(number)
        except AlreadyTaken:
            yield number, "taken"
        except Exception as error:
            yield number, f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        else:
            yield number, "ok"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["spark", "guarded", "plain", "checkpoint", "local", "stream"])
    parser.add_argument("--name", required=True)
    parser.add_argument("--commits", type=int, required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--unprotected", action="store_true", help="Delta's log store and Spark's file manager")
    parser.add_argument("--seconds", type=float, default=500, help="stop early after this long")
    given = parser.parse_args()
    protected = not given.unprotected
    append = {
        "spark": lambda: spark_appends(given.name, protected=protected),
        "guarded": lambda: guarded_appends(given.name),
        "plain": lambda: plain_appends(given.name),
        "stream": lambda: stream_runs(given.name, protected=protected),
        "local": lambda: local_commits(given.name, protected=protected),
        "checkpoint": lambda: checkpoint_adds(given.name, protected=protected),
    }[given.kind]()
    print(READY, flush=True)
    sys.stdin.readline()
    deadline = time.monotonic() + given.seconds
    with given.report.open("w") as report:
        for number, outcome in attempts(append, range(given.commits)):
            print(f"{given.name}-{number}\t{outcome}", file=report, flush=True)
            if time.monotonic() > deadline:
                break
    return 0


if __name__ == "__main__":
    sys.exit(main())
