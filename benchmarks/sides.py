"""The sides benchmarks share: Deltaworks' fan-out of a batch, and what plain Spark does with the same events.

All work in one Spark session with two cores and write to local disk below the benchmark folder, into a new folder
each time, which is removed afterwards.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.games_files import GamesFiles, bench_folder, landed_objects
from benchmarks.harness import Clock
from deltaworks.control.generations import current_checkpoint
from deltaworks.control.objects import open_objects
from deltaworks.spark_session import build_session
from deltaworks.specs.catalog import project_root
from deltaworks.specs.environment import EnvironmentSpec, SparkSpec
from deltaworks.specs.loading import load_spec
from deltaworks.specs.pipeline import PipelineSpec, TableSpec
from deltaworks.specs.storage import AwsSpec, StorageSpec
from deltaworks.streaming.batches import BatchProcessor, Ownership, SourceSlice
from deltaworks.streaming.file_payloads import FileOpener, FileReference
from deltaworks.streaming.ledger import Ledger, owner_step
from deltaworks.streaming.writers import TableSet
from deltaworks.tables.lake import Lake

MASTER = "local[2]"
_PARAMS = "eventParams"


def session() -> SparkSession:
    """The session all sides share: Deltaworks' own settings, `local[2]`."""
    here = StorageSpec(root=f"file://{bench_folder()}")
    environment = EnvironmentSpec(
        environment="bench",
        lake=here,
        landing=here,
        messaging=AwsSpec(),
        spark=SparkSpec(driver_memory="2g", shuffle_partitions=2),
    )
    return build_session(environment, app_name="benchmarks", master=MASTER)


def games_spec() -> PipelineSpec:
    """The games pipeline as it is declared."""
    return load_spec(PipelineSpec, project_root() / "include" / "pipelines" / "games" / "pipeline.yaml")


@contextmanager
def new_folder() -> Iterator[Path]:
    """A folder for one repetition's tables."""
    folder = bench_folder() / "tables" / uuid.uuid4().hex
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@dataclass(frozen=True, slots=True)
class FanOut:
    """Deltaworks' side: the landed files as one batch through `BatchProcessor`, as a stream lands it.

    Timed: prepare (read, decompress, frame, parse, write the files of all tables), commit (one guarded commit a
    table) and complete (the two ledger rows). Not timed but noted as `open_seconds`: creating and fencing the tables,
    which a stream does once a run.
    """

    spark: SparkSession
    spec: PipelineSpec
    files: GamesFiles

    def __call__(self, clock: Clock) -> None:
        paths = landed_objects(self.files.landed)
        references = [
            FileReference(seq, str(path.relative_to(self.files.landed)), "") for seq, path in enumerate(paths, start=1)
        ]
        sizes = [path.stat().st_size for path in paths]
        with new_folder() as folder:
            opened = time.perf_counter()
            processor = self._processor(StorageSpec(root=f"file://{folder}"))
            opened = time.perf_counter() - opened
            with clock:
                report = processor.process(
                    SourceSlice(references, sizes, {"files": len(sizes), "bytes": sum(sizes)}), 0
                )
        if report is None or report.quarantined != self.files.quarantined:
            raise RuntimeError(f"the batch did not land as generated: {report}")
        clock.note(
            open_seconds=opened,
            prepare_seconds=report.prepare_seconds,
            commit_seconds=report.commit_seconds,
            complete_seconds=report.complete_seconds,
            rows=report.rows,
            tables=report.tables,
            files_written=report.files_written,
        )

    def _processor(self, storage: StorageSpec) -> BatchProcessor:
        lake, objects, name = Lake(storage), open_objects(storage), self.spec.pipeline
        owner = owner_step(name, 1)
        tables = TableSet(lake, self.spec)
        tables.open()
        tables.fence(owner)
        return BatchProcessor(
            self.spark,
            self.spec,
            lake,
            objects,
            generations=current_checkpoint(objects, name, last_completed=None, end_offset=None),
            ledger=Ledger(lake, name, 1),
            tables=tables,
            ownership=Ownership(owner="benchmark", step=owner),
            opener=FileOpener(StorageSpec(root=f"file://{self.files.landed}"), compression="auto"),
        )


def event_schema(spec: PipelineSpec) -> str:
    """The schema of an event as Spark reads it: every parameter any table declares, with its declared type."""
    parameters: dict[str, str] = {part.split(".")[-1]: "string" for part in spec.event.id}
    for table in spec.tables:
        for column in table.columns:
            parameters[column.path.split(".")[-1]] = column.type
    inner = ", ".join(f"`{name}`: {kind}" for name, kind in sorted(parameters.items()))
    return f"eventName string, eventTime bigint, {_PARAMS} struct<{inner}>"


def read_unwrapped(spark: SparkSession, spec: PipelineSpec, files: GamesFiles) -> DataFrame:
    """`spark.read.schema(...).json(...)` of events that were unwrapped beforehand."""
    return spark.read.schema(event_schema(spec)).json(str(files.unwrapped))


def read_wrapped(spark: SparkSession, spec: PipelineSpec, files: GamesFiles) -> DataFrame:
    """The wrapper read with a schema, then the string under `body` with another, as Spark has it to be done."""
    lines = spark.read.schema("body string").json(str(files.lines))
    return lines.select(F.from_json("body", event_schema(spec)).alias("event")).select("event.*")


def write_table(frame: DataFrame, folder: Path, name: str, *, partition_by: tuple[str, ...] = ()) -> None:
    """One plain Delta write of a new table."""
    writer = frame.write.format("delta").mode("append")
    (writer.partitionBy(*partition_by) if partition_by else writer).save(f"file://{folder}/{name}")


def columns_of(table: TableSpec) -> list[Column]:
    """The columns of a bronze table taken from a read event, the envelope's that Spark can know among them."""
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
