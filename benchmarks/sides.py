"""Implementations shared by several benchmarks: Deltaworks' fan-out of a batch, and plain Spark on the same events.

All use one Spark session with two cores and write to a storage (`benchmarks.storages`) under a new root each time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.games_files import GamesFiles, bench_folder, landed_objects
from benchmarks.harness import Clock, Run
from benchmarks.storages import BenchmarkStorage
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import open_objects
from deltaworks.control.records.generations import Generations
from deltaworks.engine.batches import BatchProcessor, Ownership
from deltaworks.engine.commit import BatchStores
from deltaworks.engine.ledger import Ledger, owner_step
from deltaworks.engine.progress import BatchReport
from deltaworks.engine.table_set import TableSet
from deltaworks.sources.base import ObjectSlice
from deltaworks.sources.objects.payloads import FileOpener, FileReference
from deltaworks.specs.catalog import project_root
from deltaworks.specs.environment import EnvironmentSpec, SparkSpec
from deltaworks.specs.loading import load_spec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.storage import AwsSpec, StorageSpec
from deltaworks.specs.table import TableSpec
from deltaworks.tables.lake import Lake
from deltaworks.tables.spark_session import build_session

MASTER = "local[2]"
_PARAMS = "eventParams"


def session(lake: StorageSpec | None = None) -> SparkSession:
    """Returns the Spark session for all implementations: Deltaworks' settings, `local[2]`.

    Args:
        lake: storage whose credentials the session needs, if an implementation writes to S3.
    """
    here = StorageSpec(root=f"file://{bench_folder()}")
    environment = EnvironmentSpec(
        environment="bench",
        lake=lake or here,
        landing=here,
        messaging=AwsSpec(),
        spark=SparkSpec(driver_memory="2g", shuffle_partitions=2),
    )
    return build_session(environment, app_name="benchmarks", master=MASTER)


def games_spec() -> PipelineSpec:
    """Returns the games pipeline as declared, without its privacy section, since the baselines keep personal
    data too."""
    declared = load_spec(PipelineSpec, project_root() / "include" / "pipelines" / "games" / "pipeline.yaml")
    return declared.model_copy(update={"privacy": None})


class _UnplannedBatchProcessor(BatchProcessor):
    """A batch processor that lands batches without a Spark query that planned them."""

    def _end_offset(self, generations: Generations, spark_batch_id: int) -> dict[str, Any]:
        return {"seq": spark_batch_id}


def open_processor(
    spark: SparkSession, spec: PipelineSpec, files: GamesFiles, storage: StorageSpec
) -> tuple[BatchProcessor, TableSet]:
    """Creates and fences the tables of a new pipeline at `storage`. Returns a processor for its batches, and the
    tables.
    """
    lake, objects, name = Lake(storage), open_objects(storage), spec.pipeline
    owner = owner_step(name, 1)
    tables = TableSet(lake, spec)
    tables.open()
    tables.fence(owner)
    processor = _UnplannedBatchProcessor(
        spark,
        spec,
        BatchStores(lake=lake, objects=objects, ledger=Ledger(lake, name, 1), tables=tables),
        generations=PipelineHome(objects, name).generations.current_checkpoint(last_completed=None, end_offset=None),
        ownership=Ownership(owner="benchmark", step=owner),
    )
    return processor, tables


def open_files(files: GamesFiles) -> FileOpener:
    """Returns an opener for landed objects inside a task."""
    return FileOpener(StorageSpec(root=f"file://{files.landed}"), compression="auto")


def make_slice(files: GamesFiles, objects: Sequence[Path] | None = None, *, first_seq: int = 1) -> ObjectSlice:
    """Returns landed objects (by default all) as the input of one batch."""
    landed = landed_objects(files.landed) if objects is None else objects
    references = [
        FileReference(seq, str(path.relative_to(files.landed)), "") for seq, path in enumerate(landed, first_seq)
    ]
    sizes = [path.stat().st_size for path in landed]
    return ObjectSlice(references, sizes, {"files": len(sizes), "bytes": sum(sizes)}, open_files(files))


@dataclass(frozen=True, slots=True)
class FanOut:
    """Deltaworks' side: lands the files as one batch through `BatchProcessor`, as a stream does.

    Measures prepare (read, decompress, frame, parse, write the files of all tables), commit (one guarded commit per
    table) and complete (two ledger rows). Creating and fencing the tables, which a stream does once per run, is not
    measured but recorded as `open_seconds`. Raises if `check` returns false for the batch.
    """

    spark: SparkSession
    spec: PipelineSpec
    files: GamesFiles
    place: BenchmarkStorage
    check: Callable[[BatchReport, GamesFiles], bool] = lambda report, files: report.quarantined == files.quarantined

    def __call__(self, clock: Clock) -> None:
        source = make_slice(self.files)
        with self.place.new_root() as storage:
            opened = time.perf_counter()
            processor, _ = open_processor(self.spark, self.spec, self.files, storage)
            opened = time.perf_counter() - opened
            with clock:
                report = processor.process(source, 0)
        if report is None or not self.check(report, self.files):
            raise RuntimeError(f"the batch did not land as generated: {report}")
        clock.record(
            open_seconds=opened,
            prepare_seconds=report.prepare_seconds,
            commit_seconds=report.commit_seconds,
            complete_seconds=report.complete_seconds,
            rows=report.rows,
            tables=report.tables,
            files_written=report.files_written,
        )


def land_repeatedly(
    spark: SparkSession, spec: PipelineSpec, files: GamesFiles, place: BenchmarkStorage, clock: Clock, *, before: int
) -> None:
    """Lands the files `before` times without measuring, then once more with measuring."""
    source = make_slice(files)
    with place.new_root() as storage:
        processor, _ = open_processor(spark, spec, files, storage)
        for batch in range(before):
            processor.process(source, batch)
        with clock:
            report = processor.process(source, before)
    if report is None or report.quarantined != files.quarantined:
        raise RuntimeError(f"the batch did not land as generated: {report}")
    clock.record(prepare_seconds=report.prepare_seconds, rows=report.rows, files_written=report.files_written)


def event_schema(spec: PipelineSpec) -> str:
    """Returns Spark's schema of an event: every parameter that a table declares, with its declared type."""
    parameters: dict[str, str] = {part.split(".")[-1]: "string" for part in spec.event.id}
    for table in spec.tables:
        for column in table.columns:
            parameters[column.path.split(".")[-1]] = column.type
    inner = ", ".join(f"`{name}`: {kind}" for name, kind in sorted(parameters.items()))
    return f"eventName string, eventTime bigint, {_PARAMS} struct<{inner}>"


def read_unwrapped(spark: SparkSession, spec: PipelineSpec, files: GamesFiles) -> DataFrame:
    """Reads events that were unwrapped beforehand, with a schema."""
    return spark.read.schema(event_schema(spec)).json(str(files.unwrapped))


def read_wrapped(spark: SparkSession, spec: PipelineSpec, files: GamesFiles) -> DataFrame:
    """Reads the wrapper with a schema, then the string under `body` with another, as plain Spark has to."""
    lines = spark.read.schema("body string").json(str(files.lines))
    return lines.select(F.from_json("body", event_schema(spec)).alias("event")).select("event.*")


def write_table(
    frame: DataFrame, storage: StorageSpec, name: str, *, partition_by: tuple[str, ...] = (), form: str = "delta"
) -> None:
    """Writes a new table with plain Spark."""
    writer = frame.write.format(form).mode("append")
    (writer.partitionBy(*partition_by) if partition_by else writer).save(storage.spark_uri(name))


def single_write(read: Callable[[], DataFrame], place: BenchmarkStorage, *, form: str = "delta") -> Run:
    """Returns a side that writes all events to one table without partitions."""

    def run(clock: Clock) -> None:
        with place.new_root() as storage, clock:
            write_table(read(), storage, "events", form=form)

    return run


def write_tables(
    read: Callable[[], DataFrame], tables: Sequence[TableSpec], place: BenchmarkStorage, *, threads: int = 1
) -> Run:
    """Returns a side that writes each table from a filter over the cached events, with up to `threads` writes at a
    time.
    """

    def run(clock: Clock) -> None:
        with place.new_root() as storage, clock:
            events = read().where("eventName is not null and eventTime is not null").persist()

            def write(table: TableSpec) -> None:
                names = table.when.get("eventName")
                rows = events if names is None else events.where(F.col("eventName").isin(list(names)))
                write_table(rows.select(*columns_of(table)), storage, table.name, partition_by=table.partition_by)

            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(write, tables))
            events.unpersist(blocking=True)

    return run


def columns_of(table: TableSpec) -> list[Column]:
    """Returns the columns of a bronze table from a parsed event, including the envelope columns that Spark can
    compute."""
    time_of = F.timestamp_seconds("eventTime")
    envelope = [
        F.col(f"{_PARAMS}.event_id").alias("event_id"),
        F.col("eventName").alias("event_name"),
        time_of.alias("event_time"),
        F.to_date(time_of).alias("event_date"),
        F.current_timestamp().alias("_ingested_at"),
    ]
    declared = [F.col(f"{_PARAMS}.{column.path.split('.')[-1]}").alias(column.name) for column in table.columns]
    return envelope + declared
