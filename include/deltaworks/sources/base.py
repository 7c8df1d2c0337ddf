"""The interface of a source: a streaming DataFrame, the content of each batch, and the query's backlog.

A batch's start and end offset are those that Spark wrote for the query. For objects, the driver lists them and tasks
open them. Records of a stream are read in tasks only. Parsing, commits and the ledger are the same for all sources.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import pyarrow as pa

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.generations import Generations
from deltaworks.errors import DeltaworksError
from deltaworks.events.archive import RecordsToColumns
from deltaworks.events.chunks import Payload
from deltaworks.sources.records import ReadStatistics, Record
from deltaworks.sources.task_isolation import (
    RecordWindows,
    TaskOutput,
    isolate_records,
    open_isolated,
    read_objects_isolated,
    read_records_isolated,
    sort_by_task,
    sum_read_statistics,
)
from deltaworks.sources.worker_crashes import CrashIsolation
from deltaworks.tables.driver_collect import collect_bytes
from deltaworks.tables.files import WrittenFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: Start and end offset of a batch, as Spark wrote them for a query of the source.
OffsetRange = tuple[dict[str, Any], dict[str, Any]]
#: Reads the end offset of a Spark batch.
EndOffsetReader = Callable[[Generations, int], dict[str, Any]]


class OffsetRanges:
    """Reads the offset range of batches and caches the last one. Not thread-safe."""

    def __init__(self, home: PipelineHome) -> None:
        self._home = home
        self._last: tuple[tuple[Generations, int], OffsetRange] | None = None

    def read(self, generations: Generations, spark_batch_id: int, *, read_end_offset: EndOffsetReader) -> OffsetRange:
        """Returns the batch's start and end offset. For a query's first batch the start is where the query began; empty
        if it began with all available input.
        """
        batch = (generations, spark_batch_id)
        if self._last is None or self._last[0] != batch:
            end = read_end_offset(generations, spark_batch_id)
            if spark_batch_id:
                start = read_end_offset(generations, spark_batch_id - 1)
            else:
                start = generations.current.start or initial_offset(self._home, generations)
            self._last = (batch, (start, end))
        return self._last[1]


def initial_offset(home: PipelineHome, generations: Generations) -> dict[str, Any]:
    """Returns the offsets at which the query began, which Spark's Kafka source records; empty for other sources."""
    folder = paths.checkpoint(home.pipeline, generations.generation, generations.current.ordinal)
    stored = home.objects.get(f"{folder}/sources/0/0")
    if stored is None or b"{" not in stored.data:
        return {}
    # The offset follows a byte and a version number.
    offset = json.loads(stored.data[stored.data.index(b"{") :])
    return offset if isinstance(offset, dict) else {}


#: Processes the payloads of one task and writes files.
Task = Callable[[Iterable[Payload]], TaskOutput]
PayloadOpener = Callable[[Any], Payload]
#: Converts the Arrow batches of a task into records.
PayloadReader = Callable[[Iterable[pa.RecordBatch]], Iterable[Record]]
#: Maximum number of lost ranges named in the ledger.
MAX_LOST_RANGE_EXAMPLES = 5
#: Minimum input per task if there are several tasks. With less input, a task opens more files than it reads events.
MIN_BYTES_PER_TASK: Final = 4 << 20
#: Estimated cost of opening an object, as bytes read in the same time.
OPEN_COST_BYTES: Final = 128 << 10
_OUTPUT_SCHEMA = "output binary"


class Slice(Protocol):
    """The input of one batch: objects, or records of a stream."""

    @property
    def metadata(self) -> dict[str, Any]:
        """Statistics of the input, as plain JSON values for the prepared batch and the ledger. Complete once the slice
        was read.
        """

    def is_empty(self) -> bool:
        """Returns whether the slice is known to have no input. Reads nothing, so False is not certain."""

    def read(self, spark: SparkSession, task: Task, *, tasks: int) -> list[TaskOutput]:
        """Runs `task` over all payloads in at most `tasks` tasks; returns the outputs in task order.

        Reading a slice again yields the same payloads.
        """

    def read_isolated(
        self, spark: SparkSession, task: Task, *, tasks: int, isolation: CrashIsolation
    ) -> list[TaskOutput]:
        """Reads the slice after workers crashed on it: quarantines the payloads that crash workers, and reads the
        others.

        Raises:
            Exception: any failure other than a worker crash.
        """


class Source(Protocol):
    """The source of one pipeline. Used only by the driver of the pipeline's stream."""

    def frame(self, spark: SparkSession, *, start: dict[str, Any] | None) -> DataFrame:
        """Returns the streaming DataFrame, which begins after the offset `start`, or as the spec declares if `start` is
        None.

        `start` is an offset that Spark wrote for a query of this source.
        """

    def slice_of(self, batch: DataFrame, *, batch_id: int, offsets: Callable[[], OffsetRange]) -> Slice:
        """Returns the input of a batch. `batch_id` is the pipeline's batch number, not Spark's; `offsets` reads the
        batch's start and end offset.
        """

    def backlog(self, progress: Mapping[str, Any] | None) -> dict[str, Any]:
        """Returns the heartbeat fields that describe the unread input.

        `progress` is this source's part of the query's last progress; None before the first.
        """


@dataclass(frozen=True, slots=True)
class ObjectSlice:
    """Objects to read: references, their sizes in bytes, and the function that opens one inside a task."""

    references: Sequence[Any]
    sizes: Sequence[int]
    metadata: dict[str, Any]
    opener: PayloadOpener

    def is_empty(self) -> bool:
        return not self.references

    def read(self, spark: SparkSession, task: Task, *, tasks: int) -> list[TaskOutput]:
        opener = self.opener
        task_references = split_balanced(self.references, self.sizes, useful_task_count(self.sizes, tasks))

        def process_partition(number: int, partition: Iterable[list[Any]]) -> Iterator[bytes]:
            for references in partition:
                yield replace(task(map(opener, references)), task=number).encode()

        inputs = spark.sparkContext.parallelize(task_references, len(task_references))
        encoded = collect_bytes(inputs.mapPartitionsWithIndex(process_partition))
        return sort_by_task(map(TaskOutput.decode, encoded))

    def read_isolated(
        self, spark: SparkSession, task: Task, *, tasks: int, isolation: CrashIsolation
    ) -> list[TaskOutput]:
        opener, marker = self.opener, isolation.marker

        def run(references: Sequence[Any]) -> TaskOutput:
            skip_reasons = isolation.skip_reasons()

            def process_partition(task_references: Iterable[Sequence[Any]]) -> Iterator[bytes]:
                for task_input in task_references:
                    yield task(open_isolated(task_input, opener, marker=marker, skip_reasons=skip_reasons)).encode()

            inputs = spark.sparkContext.parallelize([references], 1)
            (encoded,) = collect_bytes(inputs.mapPartitions(process_partition))
            return TaskOutput.decode(encoded)

        return read_objects_isolated(split_balanced(self.references, self.sizes, tasks), run, isolation)


class ReadRanges(Protocol):
    """Records which ranges of a stream a task reads. One instance per task."""

    def track(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the batches and records the ranges they cover."""

    def ranges(self) -> list[Any]:
        """Returns the recorded ranges as plain JSON values."""


class NoReadRanges:
    """Records no ranges, for sources that detect lost records without them."""

    def track(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the batches unchanged."""
        return iter(batches)

    def ranges(self) -> list[Any]:
        """Returns an empty list."""
        return []


def _no_lost_payloads(ranges: Sequence[Any]) -> Sequence[Payload]:
    return ()


def _no_expiry_error(error: Exception) -> DeltaworksError | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCheck:
    """Detects records that a source deleted before they were read.

    Attributes:
        read_ranges: called in each task; returns the tracker of the ranges the task reads.
        lost_payloads: called in the driver with the ranges of all tasks after the pass, if losses are allowed. Returns
            one payload per lost range, which becomes a row in quarantine; its key names the range.
        expiry_error: maps an exception of the pass to the error that ends the stream, if losses are not allowed; None
            for other exceptions.
    """

    read_ranges: Callable[[], ReadRanges] = NoReadRanges
    lost_payloads: Callable[[Sequence[Any]], Sequence[Payload]] = _no_lost_payloads
    expiry_error: Callable[[Exception], DeltaworksError | None] = _no_expiry_error


class Archiver(Protocol):
    """Writes the raw records that a task reads to the archive table."""

    def archive(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Writes the batches to the archive table and yields them unchanged."""

    def files(self) -> Mapping[str, tuple[WrittenFile, ...]]:
        """Returns the files written, by table."""


@dataclass(slots=True)
class RecordSlice:
    """Records of a stream, as rows of a batch's DataFrame. In tasks, `reader` converts them into payloads and
    `to_archive`, if the pipeline has an archive, converts them into archive rows.
    """

    frame: DataFrame
    reader: PayloadReader
    losses: LossCheck = field(default_factory=LossCheck)
    metadata: dict[str, Any] = field(default_factory=dict)
    to_archive: RecordsToColumns | None = None
    _archiver: Callable[[], Archiver] | None = None

    def is_empty(self) -> bool:
        return False

    def enable_archive(self, new_archiver: Callable[[RecordsToColumns], Archiver]) -> None:
        """Archives the raw records of every later read. `new_archiver` is called in each task."""
        if self.to_archive is not None:
            self._archiver = partial(new_archiver, self.to_archive)

    def read(self, spark: SparkSession, task: Task, *, tasks: int) -> list[TaskOutput]:
        """Runs `task` over all records; see `Slice.read`. Adds a payload for each range of lost records, if losses are
        allowed.

        Raises:
            DeltaworksError: from `losses.expiry_error`.
        """
        return self._read_with_losses(task, lambda: self._run_tasks(task, tasks))

    def read_isolated(
        self, spark: SparkSession, task: Task, *, tasks: int, isolation: CrashIsolation
    ) -> list[TaskOutput]:
        """Reads the records after a worker crash, in one task, so that every pass has the same order; see
        `Slice.read_isolated`.

        Raises:
            DeltaworksError: from `losses.expiry_error`.
        """
        marker = isolation.marker

        def run(windows: RecordWindows, skip_reasons: dict[int, str]) -> list[TaskOutput]:
            def run_task(payloads: Iterable[Payload]) -> TaskOutput:
                return task(isolate_records(payloads, windows, marker=marker, skip_reasons=skip_reasons))

            return self._run_tasks(run_task, 1)

        return self._read_with_losses(task, lambda: read_records_isolated(run, isolation))

    def _read_with_losses(self, task: Task, read: Callable[[], list[TaskOutput]]) -> list[TaskOutput]:
        """Runs `read` and appends an output for the records that expired before they were read."""
        try:
            outputs = read()
        except Exception as error:
            expired = self.losses.expiry_error(error)
            if expired is None:
                raise
            raise expired from error
        self.metadata = sum_read_statistics(outputs).as_metadata()
        lost = self.losses.lost_payloads([read_ranges for output in outputs for read_ranges in output.read_ranges])
        if not lost:
            return outputs
        self.metadata |= {
            "ranges_lost": len(lost),
            "lost_examples": [payload.key for payload in lost[:MAX_LOST_RANGE_EXAMPLES]],
        }
        # There are few such rows. The driver writes them, after the rows of all tasks.
        return [*outputs, replace(task(lost), task=1 + max((output.task for output in outputs), default=-1))]

    def _run_tasks(self, task: Task, tasks: int) -> list[TaskOutput]:
        reader, new_read_ranges, new_archiver = self.reader, self.losses.read_ranges, self._archiver

        def process_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            statistics, read_ranges = ReadStatistics(), new_read_ranges()
            archiver = None if new_archiver is None else new_archiver()
            task_output = task(
                statistics.count(reader(read_ranges.track(batches if archiver is None else archiver.archive(batches))))
            )
            context = TaskContext.get()
            number = 0 if context is None else context.partitionId()
            files = {**task_output.files, **({} if archiver is None else archiver.files())}
            output = replace(
                task_output,
                task=number,
                read_statistics=statistics,
                read_ranges=tuple(read_ranges.ranges()),
                files=files,
            )
            yield pa.RecordBatch.from_pydict({"output": pa.array([output.encode()], pa.binary())})

        # One task per topic partition would write one file per partition into every table.
        rows = self.frame.coalesce(tasks).mapInArrow(process_partition, _OUTPUT_SCHEMA).collect()
        return sort_by_task(TaskOutput.decode(row["output"]) for row in rows)


def useful_task_count(sizes: Sequence[int], tasks: int) -> int:
    """Returns how many tasks, at most `tasks`, are worth starting for objects of these sizes. Each task writes a file
    into every table, so small inputs get few tasks.
    """
    return max(1, min(tasks, math.ceil((sum(sizes) + len(sizes) * OPEN_COST_BYTES) / MIN_BYTES_PER_TASK)))


def split_balanced(references: Sequence[Any], sizes: Sequence[int], tasks: int) -> list[list[Any]]:
    """Splits references into at most `tasks` consecutive parts with about the same number of bytes. Keeps their
    order."""
    total = sum(sizes) or 1
    task_references: list[list[Any]] = [[] for _ in range(max(1, min(tasks, len(references))))]
    processed = 0
    for reference, size in zip(references, sizes, strict=True):
        midpoint = processed + size / 2
        task_references[min(int(midpoint * len(task_references) / total), len(task_references) - 1)].append(reference)
        processed += size
    return [part for part in task_references if part]


log = logging.getLogger(__name__)
_T = TypeVar("_T")

LAG_INTERVAL_SECONDS = 10.0


class SourceLag:
    """Caches the backlog of a query for LAG_INTERVAL_SECONDS. Not thread-safe."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._read_at = 0.0
        self._fields: dict[str, Any] = {}

    def read(self, query: StreamingQuery, *, is_planned: bool = True) -> dict[str, Any]:
        """Returns the heartbeat fields. Never raises: if the source does not answer, returns the previous fields.

        Args:
            is_planned: whether the run has planned a batch. Before, and before the query has looked for input, the
                position is that of an earlier run: what its last batch has read would be counted as waiting.
        """
        if not is_planned and query.lastProgress is None:
            return self._fields
        if time.monotonic() - self._read_at < LAG_INTERVAL_SECONDS:
            return self._fields
        self._read_at = time.monotonic()
        try:
            progress = query.lastProgress
            self._fields = self._source.backlog(progress["sources"][0] if progress and progress["sources"] else None)
        except Exception as error:  # monitoring must not fail the stream
            log.warning("The backlog could not be read: %s", error)
        return self._fields


class CachedLookup(Generic[_T]):
    """Caches the result of a lookup for `interval_seconds`. Not thread-safe.

    The result is None before the first success. A failed lookup keeps the previous result.
    """

    def __init__(self, lookup: Callable[[], _T | None], *, description: str, interval_seconds: float = 600.0) -> None:
        self._lookup = lookup
        self._description = description
        self._interval_seconds = interval_seconds
        self._due_at = 0.0
        self._value: _T | None = None

    def read(self) -> _T | None:
        """Returns the latest result. Never raises, because a stream also runs without the permission for the lookup."""
        if time.monotonic() >= self._due_at:
            self._due_at = time.monotonic() + self._interval_seconds
            try:
                self._value = self._lookup()
            except Exception as error:
                log.info(
                    "Could not look up %s: %s", self._description, str(error).splitlines()[0] if str(error) else error
                )
        return self._value
