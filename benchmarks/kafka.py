"""`kafka`: ingest of a Kafka topic into Delta tables, against Spark's connector and `from_json` into one plain Delta
table.

The records are wrapped events of the games pipeline, in a topic with four partitions on a real broker. Both
implementations read them with the trigger `AvailableNow` in batches of the same size.

Deltaworks: the pipeline's stream as deployed, with lease, heartbeat, prepared batches, guarded commits, quarantine and
ledger. Baseline: `readStream.format("kafka")`, `from_json` for the wrapper and the body, `writeStream.format("delta")`.
Records that do not match the schema become rows of nulls there.

- `kafka_vs_plain_one_table`: both write the envelope of every event into one table without partitions.
- `kafka_vs_plain_all_tables`: Deltaworks writes all tables of the pipeline, partitioned by date; the baseline writes
  one table with all columns.

The benchmark measures the trigger time that Spark reports, summed over the batches: the recurring cost of a
long-running stream.
`run_seconds` is the complete run including its start and end.
"""

from __future__ import annotations

import gzip
import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Run, Side, TinySize, measure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.games_files import GamesFiles
    from deltaworks.specs.pipeline import PipelineSpec

_TOPIC, _PARTITIONS = "games", 4
_BATCHES = 3


def run(options: Options) -> list[Result]:
    """Measures both comparisons."""
    from benchmarks import sides
    from benchmarks.games_files import games_files

    files = games_files(options.events, progress=options.progress)
    spark, spec = sides.session(), sides.games_spec()
    envelope = spec.tables[0].model_copy(update={"partition_by": (), "zorder_by": ()})
    with _topic(files) as (bootstrap, records):
        comparisons = [
            Comparison(
                metric=f"kafka_vs_plain_{name}",
                ours=Side(f"pipeline_{name}", _ours(spark, _reading(declared, bootstrap, records), records)),
                other=Side(f"plain_{name}", _plain(spark, declared, bootstrap, records)),
                sizes={
                    "events": files.events,
                    "records": records,
                    "bytes": files.bytes,
                    "tables": len(declared.tables),
                },
            )
            for name, declared in (("one_table", _with_tables(spec, envelope)), ("all_tables", spec))
        ]
        results = measure(BENCHMARK.name, comparisons, repeats=options.repeats, progress=options.progress)
    spark.stop()
    return results


@contextmanager
def _topic(files: GamesFiles) -> Iterator[tuple[str, int]]:
    """Runs a broker with one record per piece in its topic. Yields the bootstrap address and the number of records."""
    import shutil

    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    from benchmarks.games_files import bench_folder
    from sandbox.servers.kafka_broker import running_broker

    folder = bench_folder() / f"kafka-{uuid.uuid4().hex}"
    try:
        with running_broker(folder) as broker:
            client: dict[str, Any] = dict(broker.address.client_options())
            admin = AdminClient(client)
            admin.create_topics([NewTopic(_TOPIC, _PARTITIONS)])[_TOPIC].result()
            producer, records = Producer(client | {"linger.ms": "50", "compression.type": "lz4"}), 0
            for path in sorted(files.lines.iterdir()):
                for piece in gzip.decompress(path.read_bytes()).split(b"\n"):
                    producer.produce(_TOPIC, piece, partition=records % _PARTITIONS)
                    records += 1
                producer.flush()
            yield broker.address.bootstrap, records
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _with_tables(spec: PipelineSpec, *tables: Any) -> PipelineSpec:
    """Returns the pipeline with these tables alone, and without what reads others."""
    readers = dict.fromkeys(("live", "views", "rules", "models", "dashboards", "feeds"), ())
    return spec.model_copy(update={"tables": tables, "gold": spec.gold.model_copy(update={"tables": ()}), **readers})


def _reading(spec: PipelineSpec, bootstrap: str, records: int) -> PipelineSpec:
    from deltaworks.specs.record_sources import KafkaSourceSpec

    source = KafkaSourceSpec(
        kind="kafka", bootstrap_servers=bootstrap, topics=(_TOPIC,), max_records_per_batch=_batch(records)
    )
    return spec.model_copy(update={"source": source})


def _batch(records: int) -> int:
    return records // _BATCHES + _PARTITIONS


def _ours(spark: SparkSession, spec: PipelineSpec, records: int) -> Run:
    from benchmarks import storages
    from deltaworks.control import paths
    from deltaworks.engine.runner import IngestRun
    from deltaworks.operations.stream_parts import STREAM_PARTS
    from deltaworks.specs.catalog import Catalog, project_root
    from deltaworks.specs.environment import EnvironmentSpec
    from deltaworks.specs.storage import AwsSpec
    from deltaworks.tables.lake import Lake

    def run(clock: Clock) -> None:
        with storages.local_disk().new_root() as storage:
            environment = EnvironmentSpec(environment="bench", lake=storage, landing=storage, messaging=AwsSpec())
            catalog = Catalog(environment, {}, {spec.pipeline: spec}, project_root())
            began = time.perf_counter()
            IngestRun(spark, catalog, spec.pipeline, parts=STREAM_PARTS, available_now=True).run()
            ran = time.perf_counter() - began
            lake = Lake(storage)
            progress = lake.rows(paths.pipeline_control(spec.pipeline, "progress"))
            tables = [
                lake.rows(paths.table(spec.pipeline, table), columns=["_seq"])
                for table in (spec.tables[0].name, "quarantine")
            ]
        assert progress is not None
        rows = sum(table.num_rows for table in tables if table is not None)
        if rows != records:
            raise RuntimeError(f"{rows} of {records} records are in {spec.tables[0].name} or in quarantine")
        batches = [row for row in progress.to_pylist() if row["kind"] == "batch"]
        _record_phases(clock, [json.loads(row["phases_ms"]) for row in batches], records, ran)
        clock.record(
            prepare_seconds=sum(row["prepare_seconds"] for row in batches),
            commit_seconds=sum(row["commit_seconds"] for row in batches),
            complete_seconds=sum(row["complete_seconds"] for row in batches),
        )

    return run


def _plain(spark: SparkSession, spec: PipelineSpec, bootstrap: str, records: int) -> Run:
    from pyspark.sql import functions as F

    from benchmarks import sides, storages

    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": _TOPIC,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(_batch(records)),
        "minPartitions": str(spec.stream.tasks_per_batch),
    }

    def run(clock: Clock) -> None:
        with storages.local_disk().new_root() as storage:
            began = time.perf_counter()
            wrapped = spark.readStream.format("kafka").options(**options).load().select(F.col("value").cast("string"))
            bodies = wrapped.select(F.from_json("value", "body string").alias("wrapper"))
            events = bodies.select(F.from_json("wrapper.body", sides.event_schema(spec)).alias("event"))
            writer = events.select("event.*").writeStream.format("delta").trigger(availableNow=True)
            query = writer.option("checkpointLocation", storage.spark_uri("checkpoint")).start(
                storage.spark_uri("events")
            )
            query.awaitTermination()
            ran = time.perf_counter() - began
            rows = spark.read.format("delta").load(storage.spark_uri("events")).count()
            batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
        if rows != records:
            raise RuntimeError(f"{rows} of {records} records have landed")
        _record_phases(clock, [progress["durationMs"] for progress in batches], records, ran)

    return run


def _record_phases(clock: Clock, phases: list[dict[str, int]], records: int, ran: float) -> None:
    seconds = sum(phase["triggerExecution"] for phase in phases) / 1000
    clock.seconds += seconds
    clock.record(records_per_second=records / seconds, batches=len(phases), run_seconds=ran)


BENCHMARK = Benchmark(
    name="kafka",
    summary="ingest of a Kafka topic into a pipeline's tables, against plain Spark into one Delta table",
    run=run,
    tiny=TinySize(constants={"_BATCHES": 1}),
)
