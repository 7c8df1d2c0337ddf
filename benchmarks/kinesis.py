"""`kinesis`: the throughput of one core that reads one shard, from Kinesis responses to the Arrow batches for Spark.

Deltaworks: `read_shard_range`, as a task runs it. It parses responses by orjson into columns, after writing the end of
the range to local disk.

Baselines: boto3's `get_records` into tuples, which PySpark converts to Arrow, as in PySpark's examples of Python
sources; and boto3's records converted directly into Arrow columns. Neither writes the end of the range.

The server is another process with pages encoded beforehand. `records_per_cpu_second` counts CPU time of the reader
only, so it does not depend on how busy the machine is. A real shard delivers at most 2 MB per second.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure

if TYPE_CHECKING:
    import pyarrow as pa

_SIZES = (200, 1000)
_SHARD = "shardId-000000000000"
Reader = Callable[[str, int], "Iterator[pa.RecordBatch]"]


def run(options: Options) -> list[Result]:
    """Measures records of two sizes, a tenth as many as `--events`."""
    records = max(options.events // 10, 1000)
    results = []
    for size in _SIZES:
        with _server(records, size) as endpoint:
            ours = Side(f"read_shard_range_{size}_bytes", _measure_reader(_ours, endpoint, records))
            others = {
                "boto3_tuples": Side(f"boto3_tuples_{size}_bytes", _measure_reader(_boto3_tuples, endpoint, records)),
                "boto3_arrow": Side(f"boto3_arrow_{size}_bytes", _measure_reader(_boto3_arrow, endpoint, records)),
            }
            comparisons = [
                Comparison(
                    metric=f"kinesis_vs_{name}_{size}_bytes",
                    ours=ours,
                    other=other,
                    sizes={"events": records, "record_bytes": size},
                )
                for name, other in others.items()
            ]
            results += measure(BENCHMARK.name, comparisons, repeats=options.repeats, progress=options.progress)
    return results


@contextmanager
def _server(records: int, size: int) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.kinesis_server", "--records", str(records), "--size", str(size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.terminate()


def _measure_reader(reading: Reader, endpoint: str, records: int) -> Callable[[Clock], None]:
    def run(clock: Clock) -> None:
        cpu = time.process_time()
        with clock:
            rows = sum(batch.num_rows for batch in reading(endpoint, records))
        cpu = time.process_time() - cpu
        if rows != records:
            raise AssertionError(f"{rows} of {records} records were read")
        clock.record(records_per_second=records / clock.seconds, records_per_cpu_second=records / cpu)

    return run


def _ours(endpoint: str, records: int) -> Iterator[pa.RecordBatch]:
    from deltaworks.control.objects import LocalObjects
    from deltaworks.sources.kinesis.positions import Offset, Position, ShardRange, ShardRangeLimits
    from deltaworks.sources.kinesis.shard_range_reader import FetchOptions, read_shard_range
    from deltaworks.sources.kinesis.state import QueryState

    shard_range = ShardRange(
        run="run",
        batch=0,
        shard_id=_SHARD,
        start=Position(),
        limits=ShardRangeLimits(rows=records, size=1 << 40, seconds=600),
        until=None,
        retention_seconds=86_400,
    )
    with tempfile.TemporaryDirectory() as folder:
        state = QueryState(LocalObjects(Path(folder)))
        state.record_plan(Offset(run="run", batch=0, shards={_SHARD: shard_range.start}))
        yield from read_shard_range(_stream(endpoint), state, shard_range, FetchOptions(), stream_name="games")


def _boto3_tuples(endpoint: str, records: int) -> Iterator[pa.RecordBatch]:
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

    from deltaworks.sources.kinesis.rows import ROW_SCHEMA
    from deltaworks.sources.spark_formats.data_sources import KinesisDataSource

    def tuples() -> Iterator[tuple[Any, ...]]:
        for ordinal, record in enumerate(_boto3_records(endpoint)):
            number, key, data = record["SequenceNumber"], record["PartitionKey"], record["Data"]
            yield ("games", _SHARD, number, None, key, data, record["ApproximateArrivalTimestamp"], ordinal)

    schema = from_arrow_schema(ROW_SCHEMA)
    yield from records_to_arrow_batches(tuples(), 10_000, schema, KinesisDataSource(options={}))


def _boto3_arrow(endpoint: str, records: int) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    from deltaworks.sources.kinesis.rows import ROW_SCHEMA

    ordinal = 0
    for page in _boto3_pages(endpoint):
        count = len(page)
        columns = [
            pa.repeat("games", count),
            pa.repeat(_SHARD, count),
            pa.array([record["SequenceNumber"] for record in page], pa.string()),
            pa.nulls(count, pa.int64()),
            pa.array([record["PartitionKey"] for record in page], pa.string()),
            pa.array([record["Data"] for record in page], pa.binary()),
            pa.array([record["ApproximateArrivalTimestamp"] for record in page], ROW_SCHEMA.field(6).type),
            pa.array(range(ordinal, ordinal + count), pa.int64()),
        ]
        ordinal += count
        yield pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)


def _boto3_records(endpoint: str) -> Iterator[dict[str, Any]]:
    for page in _boto3_pages(endpoint):
        yield from page


def _boto3_pages(endpoint: str) -> Iterator[list[dict[str, Any]]]:
    client = _client(endpoint)
    named = {"StreamName": "games", "ShardId": _SHARD, "ShardIteratorType": "TRIM_HORIZON"}
    iterator = client.get_shard_iterator(**named)["ShardIterator"]
    while True:
        answer = client.get_records(ShardIterator=iterator, Limit=10_000)
        yield answer["Records"]
        if not answer["MillisBehindLatest"]:
            return
        iterator = answer["NextShardIterator"]


@functools.cache
def _stream(endpoint: str) -> Any:
    from deltaworks.sources.kinesis.client import KinesisStream
    from deltaworks.specs.storage import AwsSpec

    _client(endpoint)
    return KinesisStream(AwsSpec(endpoint=endpoint), name="games")


@functools.cache
def _client(endpoint: str) -> Any:
    import os

    import boto3

    # The server does not verify signatures, but clients create them as for AWS.
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "benchmark")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "benchmark")
    return boto3.session.Session().client("kinesis", endpoint_url=endpoint, region_name="us-east-1")


BENCHMARK = Benchmark(
    name="kinesis",
    summary="reading a Kinesis shard into Arrow on one core, against boto3 into tuples and into Arrow",
    run=run,
    tiny=TinySize(),
)
