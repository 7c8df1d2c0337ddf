"""`bucket_growth`: the cost of planning a batch as a bucket grows a hundredfold, to `--events` objects.

Deltaworks: a streaming query on a file event log with one entry per object. Baseline: a streaming query of Spark's own
file source on a folder with the same number of files. Both queries have read all existing objects. Then ten new objects
land together. The benchmark measures the time that Spark reports for planning the batch (`latestOffset` and
`getBatch`). Spark reports milliseconds and planning from the log takes only a few, so one repetition is the mean of
several batches.

Everything is on local disk, where listing a folder is fastest; on S3 the file source sends one request per thousand
keys. The file source gets at most 100,000 files, since a batch takes some 20 s with a million and creating the folder
takes minutes.
"""

from __future__ import annotations

import shutil
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_SMALL_LOG_DIVISOR = 100
_MAX_FILES = 100_000
_NEW_FILES = 10
_FILES_PER_FOLDER = 1_000
_FILES_PER_APPEND = 10_000
_BATCHES_OF_LOG, _BATCHES_OF_FOLDER = 12, 1


def run(options: Options) -> list[Result]:
    """Measures a small log, a large log, and a large folder."""
    from benchmarks import sides
    from benchmarks.games_files import bench_folder

    spark = sides.session()
    root = bench_folder() / f"growth-{uuid.uuid4().hex[:8]}"
    objects, few, files = options.events, options.events // _SMALL_LOG_DIVISOR, min(options.events, _MAX_FILES)
    try:
        with (
            _log_query(spark, root / "few", few, options) as log_of_few,
            _log_query(spark, root / "many", objects, options) as log_of_many,
            _folder_query(spark, root / "folder", files, options) as folder,
        ):
            ours = Side("log_of_many_objects", log_of_many)
            sizes = {"objects": objects, "new_objects": _NEW_FILES}
            comparisons = [
                Comparison(
                    metric="plan_many_vs_hundredth",
                    ours=ours,
                    other=Side("log_of_few_objects", log_of_few),
                    sizes=sizes | {"other_objects": few},
                ),
                Comparison(
                    metric="plan_many_vs_file_source",
                    ours=ours,
                    other=Side("file_source", folder),
                    sizes=sizes | {"other_objects": files},
                ),
            ]
            return measure(BENCHMARK.name, comparisons, repeats=options.repeats, progress=options.progress)
    finally:
        spark.stop()
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def _log_query(spark: SparkSession, root: Path, objects: int, options: Options) -> Iterator[Callable[[Clock], None]]:
    """Starts a query on a log of `objects` objects. Yields a repetition that lands ten more objects per batch."""
    from deltaworks.sources.objects.file_event_log import FileEventLog
    from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, ReceivedEvent
    from deltaworks.sources.objects.relay.messages import FileEvent
    from deltaworks.sources.objects.slices import MAX_BATCH_FILES, FileEventPlanner, SliceLimits
    from deltaworks.sources.record_source import planned_frame
    from deltaworks.specs.storage import StorageSpec
    from deltaworks.tables.lake import Lake

    options.progress(f"bucket_growth: a log of {objects:,} objects")
    lake = Lake(StorageSpec(root=f"file://{root}/lake"))
    writer = FileEventLogWriter(lake, "landing", epoch=1)
    at = datetime(2026, 1, 1, tzinfo=UTC)

    def land(first: int, count: int) -> None:
        events = [
            FileEvent(
                "b", f"events/{n // _FILES_PER_FOLDER:05}/{n:09}.json", 9, f"{n}", None, at, "ObjectCreated:Put", None
            )
            for n in range(first, first + count)
        ]
        writer.append([ReceivedEvent(event, "m", at) for event in events])

    for first in range(0, objects, _FILES_PER_APPEND):
        land(first, min(_FILES_PER_APPEND, objects - first))
    limits = SliceLimits(max_files=MAX_BATCH_FILES, max_bytes=None)
    batches = FileEventPlanner(FileEventLog(lake, "landing"), bucket="b", prefix="", limits=limits)
    with _start_query(planned_frame(spark, batches), root) as query:
        _await(query, lambda: _last_read_seq(query) == objects, "batch that reads the last object")
        yield _repetition(query, lambda: land(writer.last_seq, _NEW_FILES), batches=_BATCHES_OF_LOG)


def _last_read_seq(query: StreamingQuery) -> int:
    """Returns the last seq the query has read."""
    from deltaworks.sources.objects.source import finished_seq

    planned = _planned_batches(query)
    return finished_seq(planned[-1]["sources"][0] if planned else None)


@contextmanager
def _folder_query(spark: SparkSession, root: Path, objects: int, options: Options) -> Iterator[Callable[[Clock], None]]:
    """Starts a query of Spark's file source on a folder of `objects` files. Yields a repetition that adds ten more
    together.
    """
    options.progress(f"bucket_growth: a folder of {objects:,} files")

    def make(folder: Path, count: int) -> Path:
        folder.mkdir(parents=True)
        for number in range(count):
            (folder / f"{number:09}.json").write_bytes(b'{"n": 1}\n')
        return folder

    for first in range(0, objects, _FILES_PER_FOLDER):
        make(root / "files" / f"{first // _FILES_PER_FOLDER:05}", _FILES_PER_FOLDER)

    def land() -> None:
        # A rename publishes all files at the same time, so one batch reads all of them.
        make(root / uuid.uuid4().hex, _NEW_FILES).rename(root / "files" / f"new-{uuid.uuid4().hex}")

    frame = spark.readStream.schema("n long").option("recursiveFileLookup", "true").json(str(root / "files"))
    with _start_query(frame, root) as query:
        yield _repetition(query, land, batches=_BATCHES_OF_FOLDER)


@contextmanager
def _start_query(frame: DataFrame, root: Path) -> Iterator[StreamingQuery]:
    """Starts a query and yields it after its first batch. Its batches are planned but not read, since only planning is
    measured.
    """
    writer = frame.writeStream.foreachBatch(lambda batch, batch_id: None).trigger(processingTime="250 milliseconds")
    query = writer.option("checkpointLocation", str(root / "checkpoint")).start()
    try:
        _await(query, lambda: bool(_planned_batches(query)), "first batch")
        yield query
    finally:
        query.stop()


def _repetition(query: StreamingQuery, land: Callable[[], None], *, batches: int) -> Callable[[Clock], None]:
    def run(clock: Clock) -> None:
        planned, whole = [], []
        for _ in range(batches):
            durations = _next_batch(query, land)
            planned.append((durations["latestOffset"] + durations.get("getBatch", 0)) / 1000)
            whole.append(durations["triggerExecution"] / 1000)
        clock.seconds = statistics.fmean(planned)
        clock.record(batch_seconds=statistics.fmean(whole))

    return run


def _next_batch(query: StreamingQuery, land: Callable[[], None]) -> dict[str, int]:
    """Lands objects and returns the durations, in milliseconds, of the batch that reads them."""
    newest = _newest_batch_id(query)
    land()
    _await(query, lambda: _newest_batch_id(query) > newest, "batch for the new objects")
    return dict(_planned_batches(query)[-1]["durationMs"])


def _newest_batch_id(query: StreamingQuery) -> int:
    """Returns the id of the newest batch. Spark keeps the progress of the last hundred triggers only."""
    planned = _planned_batches(query)
    return int(planned[-1]["batchId"]) if planned else -1


def _planned_batches(query: StreamingQuery) -> list[dict[str, Any]]:
    """Returns the progress of each batch so far, in order. Triggers without a batch have no `addBatch` duration."""
    by_batch: dict[int, dict[str, Any]] = {}
    for batch in query.recentProgress:
        if "addBatch" in batch["durationMs"]:
            by_batch[batch["batchId"]] = dict(batch)
    return [by_batch[batch] for batch in sorted(by_batch)]


def _await(query: StreamingQuery, condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        if query.exception() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no {what}: {query.exception()}")
        time.sleep(0.1)


BENCHMARK = Benchmark(
    name="bucket_growth",
    summary="planning a batch from a log of all objects, against a hundredth of them and against Spark's file source",
    run=run,
    tiny=TinySize(constants={"_BATCHES_OF_LOG": 2}),
)
