"""What a source is: it gives Spark a streaming DataFrame, says what a batch of it holds, and how far behind a query is.

Objects are named in the driver and opened in tasks. Records of a stream are read in tasks and never seen by the driver.
Everything after that, from parsing to the ledger, is the same for all sources.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import pyarrow as pa

from deltaworks.errors import DeltaworksError
from deltaworks.events.archive import RecordsToColumns
from deltaworks.events.parse import Payload
from deltaworks.sources.offset_ranges import OffsetRange
from deltaworks.sources.records import ReadStatistics, Record
from deltaworks.sources.task_isolation import (
    RecordWindows,
    isolate_records,
    open_isolated,
    read_objects_isolated,
    read_records_isolated,
)
from deltaworks.sources.task_output import TaskOutput, sort_by_task, sum_read_statistics
from deltaworks.sources.worker_crashes import CrashIsolation
from deltaworks.tables.files import WrittenFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


#: The work of a task: payloads to files.
Task = Callable[[Iterable[Payload]], TaskOutput]
PayloadOpener = Callable[[Any], Payload]
#: Turns the rows of a task, as they come, into payloads.
PayloadReader = Callable[[Iterable[pa.RecordBatch]], Iterable[Record]]
#: How many ranges of lost records the ledger names.
MAX_LOST_RANGE_EXAMPLES = 5
#: What a task reads at least where there is another: in less than that it opens more files than it reads events.
MIN_BYTES_PER_TASK: Final = 4 << 20
#: What opening an object counts for beside its bytes, since it is a wait.
OPEN_COST_BYTES: Final = 128 << 10
_OUTPUT_SCHEMA = "output binary"


class Slice(Protocol):
    """What one batch reads."""

    @property
    def metadata(self) -> dict[str, Any]:
        """Facts about it for the prepared batch and the ledger. Complete once a pass has read it."""

    def is_empty(self) -> bool:
        """Whether it holds nothing, as far as is known without reading it."""

    def read(self, spark: SparkSession, task: Task, *, tasks: int) -> list[TaskOutput]:
        """Run `task` over all payloads, in at most `tasks` tasks; their outputs, in the order of tasks.

        Reading a slice again gives the same payloads.
        """

    def read_isolated(
        self, spark: SparkSession, task: Task, *, tasks: int, isolation: CrashIsolation
    ) -> list[TaskOutput]:
        """As `read`, where tasks died: what they die on is told apart and quarantined, and the rest is read.

        Raises:
            Exception: what failed otherwise.
        """


class Source(Protocol):
    """One pipeline's source. Used by the driver of its stream alone."""

    def frame(self, spark: SparkSession, *, start: dict[str, Any] | None) -> DataFrame:
        """The streaming DataFrame, beginning after the offset `start`, or where the declaration says if that is None.

        `start` is an offset as Spark wrote it for a query of this source.
        """

    def slice_of(self, batch: DataFrame, *, batch_id: int, offsets: Callable[[], OffsetRange]) -> Slice:
        """What this batch reads. `batch_id` is ours, not Spark's; `span` reads between which offsets the batch lies."""

    def backlog(self, progress: Mapping[str, Any] | None) -> dict[str, Any]:
        """Heartbeat fields: how far behind the query is. `progress` is its last one, of this source; None before."""


@dataclass(frozen=True, slots=True)
class ObjectSlice:
    """Objects: references to them, their sizes in bytes, and what opens one inside a task."""

    references: Sequence[Any]
    sizes: Sequence[int]
    metadata: dict[str, Any]
    opener: PayloadOpener

    def is_empty(self) -> bool:
        return not self.references

    def read(self, spark: SparkSession, task: Task, *, tasks: int) -> list[TaskOutput]:
        opener = self.opener
        shares = split_balanced(self.references, self.sizes, useful_task_count(self.sizes, tasks))

        def work(number: int, share: Iterable[list[Any]]) -> Iterator[bytes]:
            for references in share:
                yield replace(task(map(opener, references)), task=number).encode()

        encoded = spark.sparkContext.parallelize(shares, len(shares)).mapPartitionsWithIndex(work).collect()
        return sort_by_task(map(TaskOutput.decode, encoded))

    def read_isolated(
        self, spark: SparkSession, task: Task, *, tasks: int, isolation: CrashIsolation
    ) -> list[TaskOutput]:
        opener, record = self.opener, isolation.marker

        def run(references: Sequence[Any]) -> TaskOutput:
            blamed = isolation.skip_reasons()

            def work(shares: Iterable[Sequence[Any]]) -> Iterator[bytes]:
                for share in shares:
                    yield task(open_isolated(share, opener, marker=record, skip_reasons=blamed)).encode()

            (encoded,) = spark.sparkContext.parallelize([references], 1).mapPartitions(work).collect()
            return TaskOutput.decode(encoded)

        return read_objects_isolated(split_balanced(self.references, self.sizes, tasks), run, isolation)


class ReadRanges(Protocol):
    """Notes which ranges of its stream a task reads. One for each task."""

    def track(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, noted on their way."""

    def ranges(self) -> list[Any]:
        """What was noted, as plain JSON values."""


class NoReadRanges:
    """Of a source that needs no notes of its tasks to say what was lost."""

    def track(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches."""
        return iter(batches)

    def ranges(self) -> list[Any]:
        """Nothing."""
        return []


def _no_lost_payloads(ranges: Sequence[Any]) -> Sequence[Payload]:
    return ()


def _no_expiry_error(error: Exception) -> DeltaworksError | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCheck:
    """Notifications what a source had removed before it was read.

    Attributes:
        seen: made in every task, which notes with it what it reads.
        lost: called in the driver with all notes once everything has been read, where losses are allowed: a payload for
            each range that is gone, which becomes its row in quarantine; its key names the range.
        expired: what an error of the pass means, where losses end the stream; None for an error of another kind.
    """

    read_ranges: Callable[[], ReadRanges] = NoReadRanges
    lost_payloads: Callable[[Sequence[Any]], Sequence[Payload]] = _no_lost_payloads
    expiry_error: Callable[[Exception], DeltaworksError | None] = _no_expiry_error


class Archiver(Protocol):
    """Keeps the records of a task as they came."""

    def archive(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, kept on their way."""

    def files(self) -> Mapping[str, tuple[WrittenFile, ...]]:
        """The files written, by table."""


@dataclass(slots=True)
class RecordSlice:
    """Records of a stream, as the rows of a batch's DataFrame; `reader` makes payloads of them inside a task.

    `to_archive` makes rows of the pipeline's archive of them, where it has one.
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
        """Keep all records as they come, from the next pass on. `make` is called in every task."""
        if self.to_archive is not None:
            self._archiver = partial(new_archiver, self.to_archive)

    def read(self, spark: SparkSession, task: Task, *, tasks: int) -> list[TaskOutput]:
        """See Slice.

        Raises:
            DeltaworksError: as `losses.expired` says.
        """
        return self._read_with_losses(task, lambda: self._run_tasks(task, tasks))

    def read_isolated(
        self, spark: SparkSession, task: Task, *, tasks: int, isolation: CrashIsolation
    ) -> list[TaskOutput]:
        """See Slice. All records are read by one task, so that their order is that of every other pass.

        Raises:
            DeltaworksError: as `losses.expired` says.
        """
        record = isolation.marker

        def run(windows: RecordWindows, blamed: dict[int, str]) -> list[TaskOutput]:
            def noted(payloads: Iterable[Payload]) -> TaskOutput:
                return task(isolate_records(payloads, windows, marker=record, skip_reasons=blamed))

            return self._run_tasks(noted, 1)

        return self._read_with_losses(task, lambda: read_records_isolated(run, isolation))

    def _read_with_losses(self, task: Task, read: Callable[[], list[TaskOutput]]) -> list[TaskOutput]:
        """The outputs of a pass, and behind them that of what was lost before it could be read."""
        try:
            outputs = read()
        except Exception as error:
            expired = self.losses.expiry_error(error)
            if expired is None:
                raise
            raise expired from error
        self.metadata = sum_read_statistics(outputs).as_metadata()
        lost = self.losses.lost_payloads([seen for output in outputs for seen in output.read_ranges])
        if not lost:
            return outputs
        self.metadata |= {
            "ranges_lost": len(lost),
            "lost_examples": [gap.key for gap in lost[:MAX_LOST_RANGE_EXAMPLES]],
        }
        # A few rows at most: they are written here, behind those of all tasks.
        return [*outputs, replace(task(lost), task=1 + max((output.task for output in outputs), default=-1))]

    def _run_tasks(self, task: Task, tasks: int) -> list[TaskOutput]:
        reader, make_seen, make_archiver = self.reader, self.losses.read_ranges, self._archiver

        def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            facts, seen = ReadStatistics(), make_seen()
            archiver = None if make_archiver is None else make_archiver()
            written = task(facts.count(reader(seen.track(batches if archiver is None else archiver.archive(batches)))))
            context = TaskContext.get()
            number = 0 if context is None else context.partitionId()
            files = {**written.files, **({} if archiver is None else archiver.files())}
            output = replace(written, task=number, read_statistics=facts, read_ranges=tuple(seen.ranges()), files=files)
            yield pa.RecordBatch.from_pydict({"output": pa.array([output.encode()], pa.binary())})

        # A task for every partition of a topic would write a file into every table each.
        rows = self.frame.coalesce(tasks).mapInArrow(work, _OUTPUT_SCHEMA).collect()
        return sort_by_task(TaskOutput.decode(row["output"]) for row in rows)


def useful_task_count(sizes: Sequence[int], tasks: int) -> int:
    """How many tasks objects of these sizes are worth, `tasks` at most: each writes a file into every table."""
    return max(1, min(tasks, math.ceil((sum(sizes) + len(sizes) * OPEN_COST_BYTES) / MIN_BYTES_PER_TASK)))


def split_balanced(references: Sequence[Any], sizes: Sequence[int], tasks: int) -> list[list[Any]]:
    """Split references into at most `tasks` runs of about equal size, keeping their order."""
    total = sum(sizes) or 1
    shares: list[list[Any]] = [[] for _ in range(max(1, min(tasks, len(references))))]
    before = 0
    for reference, size in zip(references, sizes, strict=True):
        middle = before + size / 2
        shares[min(int(middle * len(shares) / total), len(shares) - 1)].append(reference)
        before += size
    return [share for share in shares if share]


log = logging.getLogger(__name__)
_T = TypeVar("_T")

LAG_INTERVAL_SECONDS = 10.0


class SourceLag:
    """How far behind its source a query is, read every LAG_INTERVAL_SECONDS at most. Not for several threads at once."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._read_at = 0.0
        self._fields: dict[str, Any] = {}

    def read(self, query: StreamingQuery) -> dict[str, Any]:
        """Heartbeat fields. Never raises: while the source does not answer, they stay as they were."""
        if time.monotonic() - self._read_at < LAG_INTERVAL_SECONDS:
            return self._fields
        self._read_at = time.monotonic()
        try:
            progress = query.lastProgress
            self._fields = self._source.backlog(progress["sources"][0] if progress and progress["sources"] else None)
        except Exception as error:  # watching never fails the stream
            log.warning("backlog not read: %s", error)
        return self._fields


class CachedLookup(Generic[_T]):
    """An answer that is kept for a while. None before the first; a lookup that fails leaves the last answer.

    Not for several threads at once.
    """

    def __init__(self, lookup: Callable[[], _T | None], *, description: str, interval_seconds: float = 600.0) -> None:
        self._lookup = lookup
        self._description = description
        self._interval_seconds = interval_seconds
        self._due_at = 0.0
        self._value: _T | None = None

    def read(self) -> _T | None:
        """The newest answer. Never raises: a stream that may not ask is watched without."""
        if time.monotonic() >= self._due_at:
            self._due_at = time.monotonic() + self._interval_seconds
            try:
                self._value = self._lookup()
            except Exception as error:
                log.info("%s is not known: %s", self._description, str(error).splitlines()[0] if str(error) else error)
        return self._value
