"""`file_sizes`: the ingest throughput for objects of 10 kB, 1 MB and 100 MB.

Deltaworks: a relay lists the objects into its file event log, and a pipeline's stream lands them in three tables,
exactly once, with its ledger, from an empty lake to the last commit.

Baseline: Spark's own file source on the same folder, into one plain Delta table with the same columns. It parses with a
schema and drops values that do not match.

All sizes contain the same number of bytes, except that there are at most 5,000 small files. Everything is on local
disk.

There are two metrics per size. `ingest_…` is the total time in a warm session, from the call to the last commit,
including the start. Deltaworks' start takes seconds, which a stream spends once in hours: it acquires a lease, creates
and fences all its tables (the baseline creates one), and starts a Python process that plans the source. `batches_…` is
the recurring cost: the relay, and the batch time reported by Spark, including offsets and commits, on both sides.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, derive_result, measure
from benchmarks.project import declare_project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltaworks.specs.catalog import Catalog

_SIZES = {"10kB": 10_000, "1MB": 1_000_000, "100MB": 100_000_000}
_MAX_FILES = 5_000
_BYTES_PER_EVENT = 200
_KINDS = ("view", "click", "buy")
_SCHEMA = "name string, id string, at long, price double, path string, device struct<os: string, version: string>"
_COLUMNS: list[dict[str, Any]] = [
    {"name": "price", "path": "price", "type": "double"},
    {"name": "path", "path": "path", "type": "string"},
    {"name": "os", "path": "device.os", "type": "string"},
    {"name": "version", "path": "device.version", "type": "string"},
]


def run(options: Options) -> list[Result]:
    """Measures each object size with both implementations."""
    from benchmarks import sides
    from benchmarks.games_files import bench_folder

    spark = sides.session()
    comparisons = []
    try:
        for name, size in _SIZES.items():
            count = max(1, min(_MAX_FILES, options.events * _BYTES_PER_EVENT // size))
            files = _files(bench_folder() / f"sizes-{size}-{count}", size, count, options)
            comparisons.append(
                Comparison(
                    metric=f"ingest_{name}_vs_file_source",
                    ours=Side(f"ingest_{name}", _Ingest(spark, files)),
                    other=Side(f"file_source_{name}", _FileSource(spark, files)),
                    sizes={"files": count, "bytes": files.bytes, "events": files.events},
                )
            )
        whole = measure(BENCHMARK.name, comparisons, repeats=options.repeats, progress=options.progress)
        return [part for result in whole for part in (result, _batch_result(result))]
    finally:
        spark.stop()


def _batch_result(result: Result) -> Result:
    """Returns the comparison without the cost of starting and ending a query."""
    ours = result.ours_parts["relay_seconds"] + result.ours_parts["batch_seconds"]
    other = result.other_parts["batch_seconds"]
    return derive_result(result, metric=result.metric.replace("ingest_", "batches_"), sides=(ours, other))


@dataclass(slots=True)
class _BatchTimes:
    """The batch times that Spark reports for a query, complete when the query has ended."""

    seconds: float = 0.0
    ended: threading.Event = field(default_factory=threading.Event)

    def add(self, progress: dict[str, Any]) -> None:
        """Adds the duration of a batch, or of a trigger without input."""
        self.seconds += progress["durationMs"].get("triggerExecution", 0) / 1e3


@contextmanager
def _listen(spark: SparkSession, query_name: str) -> Iterator[_BatchTimes]:
    """Listens to a query until it has ended."""
    from deltaworks.engine.queries import IngestListener, listener_attached

    batches = _BatchTimes()
    listener = IngestListener(
        query_name, on_progress=batches.add, on_idle=lambda: None, on_terminated=lambda _: batches.ended.set()
    )
    with listener_attached(spark, listener):
        yield batches
        if not batches.ended.wait(60):
            raise RuntimeError(f"Spark did not report the end of query {query_name}")


@dataclass(frozen=True, slots=True)
class _Files:
    folder: Path
    count: int
    bytes: int
    events: int

    def rates(self, seconds: float) -> dict[str, float]:
        """Returns the throughput of one repetition."""
        return {
            "megabytes_per_second": self.bytes / 1e6 / seconds,
            "files_per_second": self.count / seconds,
            "events_per_second": self.events / seconds,
        }


def _files(folder: Path, size: int, count: int, options: Options) -> _Files:
    """Returns objects of JSON lines, created on first use."""
    record = folder.with_suffix(".json")
    if not record.is_file():
        options.progress(f"file_sizes: {count:,} files of {size:,} bytes")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        events = written = 0
        for number in range(count):
            with (folder / f"{number:06}.json").open("wb") as file:
                while file.tell() < size:
                    file.write(_event(events))
                    events += 1
                written += file.tell()
        record.write_text(json.dumps({"bytes": written, "events": events}))
    return _Files(folder, count, **json.loads(record.read_text()))


def _event(number: int) -> bytes:
    event = {
        "name": _KINDS[number % 3],
        "id": f"{number:032x}",
        "at": 1_700_000_000 + number // 1_000,
        "price": number % 1_000 / 100,
        "path": f"/shop/{number % 977}/item/{number % 7_919}",
        "device": {"os": "linux", "version": f"{number % 40}.1"},
    }
    return json.dumps(event).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class _Ingest:
    """Runs a relay and a stream in a temporary project."""

    spark: SparkSession
    files: _Files

    def __call__(self, clock: Clock) -> None:
        from deltaworks.engine.runner import IngestRun
        from deltaworks.operations.stream_parts import STREAM_PARTS
        from deltaworks.sources.objects.relay.relay import Relay

        with _project(self.files.folder) as catalog:
            environment = catalog.environment
            with _listen(self.spark, "sizes.ingest") as batches, clock:
                began = time.perf_counter()
                relay = catalog.relay("landing")
                counts = Relay(
                    relay, lake=environment.lake, queue=None, landing=environment.landing, until_drained=True
                ).run()
                relayed = time.perf_counter() - began
                result = IngestRun(self.spark, catalog, "sizes", parts=STREAM_PARTS, available_now=True).run()
        if (counts.events, result.rows) != (self.files.count, self.files.events):
            raise RuntimeError(f"not all data landed: {counts.events} files, {result.rows} rows")
        clock.record(
            relay_seconds=relayed,
            batch_seconds=batches.seconds,
            batches=result.batches,
            **self.files.rates(clock.seconds),
        )


@dataclass(frozen=True, slots=True)
class _FileSource:
    """Runs a plain streaming query into one table."""

    spark: SparkSession
    files: _Files

    def __call__(self, clock: Clock) -> None:
        with _root() as root:
            frame = self.spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 500).json(str(self.files.folder))
            writer = frame.selectExpr("*", "timestamp_seconds(at) AS event_time").writeStream.format("delta")
            writer = writer.queryName("sizes.plain").option("checkpointLocation", f"{root}/c")
            with _listen(self.spark, "sizes.plain") as batches, clock:
                writer.trigger(availableNow=True).start(f"{root}/t").awaitTermination()
            rows = self.spark.read.format("delta").load(f"{root}/t").count()
        if rows != self.files.events:
            raise RuntimeError(f"{rows} rows were landed, not {self.files.events}")
        clock.record(batch_seconds=batches.seconds, **self.files.rates(clock.seconds))


@contextmanager
def _root() -> Iterator[Path]:
    from benchmarks.games_files import bench_folder

    root = bench_folder() / f"sizes-run-{uuid.uuid4().hex[:8]}"
    root.mkdir()
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def _project(folder: Path) -> Iterator[Catalog]:
    """Creates a project with one pipeline of three tables that reads the folder, and an empty lake."""
    declared = {
        "pipeline": "sizes",
        "description": "files of one size",
        "event": {"name": {"path": "name"}, "time": {"path": "at", "unit": "epoch_seconds"}, "id": "id"},
        "tables": [{"name": kind, "when": {"name": kind}, "columns": _COLUMNS} for kind in _KINDS],
        "stream": {"tasks_per_batch": 2},
    }
    with _root() as root:
        yield declare_project(root, declared, landing=folder)


BENCHMARK = Benchmark(
    name="file_sizes",
    summary="ingest of objects of 10 kB, 1 MB and 100 MB through relay and stream, against Spark's file source",
    run=run,
    tiny=TinySize(constants={"_SIZES": {"10kB": 10_000, "1MB": 20_000, "100MB": 40_000}}),
)
