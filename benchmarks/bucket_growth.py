"""`bucket_growth`: what planning a batch costs as a bucket grows a hundredfold, to `--events` objects.

Ours: a streaming query on a file event log of as many objects, as a pipeline has it. Other: a streaming query of
Spark's own file source on a folder of as many files. Both have read all that is there; then ten new objects come at
once, and what counts is what Spark says it spent on finding the batch and fixing it (`latestOffset` and `getBatch`).
Spark reports milliseconds, of which the log takes a few: a repetition is the mean of several batches there.

Everything lies on local disk, where a folder is listed fastest; on S3 the file source asks for every thousand keys. The
file source has 100,000 files at most: it takes some 20 s a batch for a million, and the folder itself minutes.
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

from benchmarks.harness import Benchmark, Clock, Comparison, Figure, Options, Side, measure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_SHARE = 100
_MAX_FILES = 100_000
_NEW_FILES = 10
_FILES_PER_FOLDER = 1_000
_FILES_PER_APPEND = 10_000
_BATCHES_OF_LOG, _BATCHES_OF_FOLDER = 12, 1


def run(options: Options) -> list[Figure]:
    """Measure a log of few and one of many objects, and a folder of many."""
    from benchmarks import sides
    from benchmarks.games_files import bench_folder

    spark = sides.session()
    root = bench_folder() / f"growth-{uuid.uuid4().hex[:8]}"
    objects, few, files = options.events, options.events // _SHARE, min(options.events, _MAX_FILES)
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
    """A query on a log of `objects` objects; what it gives lands ten more."""
    from deltaworks.sources.objects.file_event_log import FileEventLog
    from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, ReceivedEvent
    from deltaworks.sources.objects.relay.messages import FileEvent
    from deltaworks.sources.objects.slices import MAX_BATCH_FILES, FileEventPlanner, SliceLimits
    from deltaworks.sources.planned_offsets import planned_frame
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
        _await(query, lambda: _read_to(query) == objects, "a batch that reads the last object")
        yield _repetition(query, lambda: land(writer.last_seq, _NEW_FILES), batches=_BATCHES_OF_LOG)


def _read_to(query: StreamingQuery) -> int:
    """The seq that the query has read to."""
    from deltaworks.sources.objects.source import finished_seq

    planned = _planned_batch(query)
    return finished_seq(planned[-1]["sources"][0] if planned else None)


@contextmanager
def _folder_query(spark: SparkSession, root: Path, objects: int, options: Options) -> Iterator[Callable[[Clock], None]]:
    """A query of Spark's file source on a folder of `objects` files; what it gives puts ten more there at once."""
    options.progress(f"bucket_growth: a folder of {objects:,} files")

    def make(folder: Path, count: int) -> Path:
        folder.mkdir(parents=True)
        for number in range(count):
            (folder / f"{number:09}.json").write_bytes(b'{"n": 1}\n')
        return folder

    for first in range(0, objects, _FILES_PER_FOLDER):
        make(root / "files" / f"{first // _FILES_PER_FOLDER:05}", _FILES_PER_FOLDER)

    def land() -> None:
        # Renamed as a whole, so that one batch takes all.
        make(root / uuid.uuid4().hex, _NEW_FILES).rename(root / "files" / f"new-{uuid.uuid4().hex}")

    frame = spark.readStream.schema("n long").option("recursiveFileLookup", "true").json(str(root / "files"))
    with _start_query(frame, root) as query:
        yield _repetition(query, land, batches=_BATCHES_OF_FOLDER)


@contextmanager
def _start_query(frame: DataFrame, root: Path) -> Iterator[StreamingQuery]:
    """The query, once it has read what is there. Its batches are planned, and not read: reading is not what counts."""
    writer = frame.writeStream.foreachBatch(lambda batch, batch_id: None).trigger(processingTime="250 milliseconds")
    query = writer.option("checkpointLocation", str(root / "checkpoint")).start()
    try:
        _await(query, lambda: bool(_planned_batch(query)), "its first batch")
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
    """What the batch of what is landed now took, in milliseconds."""
    newest = _newest_batch(query)
    land()
    _await(query, lambda: _newest_batch(query) > newest, "a batch of what has landed")
    return dict(_planned_batch(query)[-1]["durationMs"])


def _newest_batch(query: StreamingQuery) -> int:
    """The newest batch; progress is kept of the last hundred triggers alone."""
    planned = _planned_batch(query)
    return int(planned[-1]["batchId"]) if planned else -1


def _planned_batch(query: StreamingQuery) -> list[dict[str, Any]]:
    """The progress of every batch so far; triggers without one have no `addBatch`."""
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
    summary="planning a batch with a hundredth of the objects and with all, against Spark's own file source",
    run=run,
)
