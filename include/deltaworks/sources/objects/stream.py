"""The PySpark streaming source `deltaworks_file_events`: slices of one bucket and prefix of a relay's log.

A slice is bounded by files and bytes, and is the same at every replay. A position is the last `seq` included. Slices
are planned in Spark's planner process, once per trigger, so scanning is remembered between calls and bounded in each.
An exception in planning ends the query, so planners wait for storage inside.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from deltaworks.sources.objects.log import FILE_EVENT_SCHEMA, FileEventLog, matching
from deltaworks.sources.outages import through_outages
from deltaworks.sources.stream_options import invalid_option, known_options, number_option
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.loading import load_spec
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit


#: Files of the largest batch, whatever Spark asks for: a batch's files travel from planner to tasks one by one.
LARGEST_BATCH_FILES = 100_000
_PATIENCE_SECONDS = 120.0
T = TypeVar("T")
_SCAN_ROWS = 20_000
_SCAN_COLUMNS = ("seq", "bucket", "key", "size")


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceLimits:
    """How large one batch may be. A batch holds at least one file, however large; None is no limit."""

    max_files: int | None
    max_bytes: int | None


def slice_limits(limit: ReadLimit, *, max_files: int, max_bytes: int) -> SliceLimits:
    """What Spark asks for, within the two limits the query declares."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles, ReadMaxRows

    match limit:
        case ReadAllAvailable():
            return SliceLimits(max_files=LARGEST_BATCH_FILES, max_bytes=None)
        case ReadMaxFiles(files) | ReadMaxRows(files):
            return SliceLimits(max_files=files, max_bytes=max_bytes)
        case ReadMaxBytes(size):
            return SliceLimits(max_files=max_files, max_bytes=size)
    return SliceLimits(max_files=max_files, max_bytes=max_bytes)


def patiently(call: Callable[[], T]) -> T:
    """Call until it succeeds, fails for good, or has failed for two minutes; its last error is raised."""
    return through_outages(call, patience_seconds=_PATIENCE_SECONDS)


class SlicePlanner:
    """The slices of one bucket (or all), prefix and glob of a log."""

    def __init__(
        self, log: FileEventLog, *, bucket: str | None, prefix: str, glob: str | None = None, skip_after: int = 200_000
    ) -> None:
        self._log = log
        self._bucket = bucket
        self._prefix = prefix
        self._glob = glob
        self._skip_after = skip_after
        #: No event of ours lies between the two: (position asked from, position scanned to).
        self._barren = (0, 0)
        self._newest = 0
        self._newest_scanned = 0

    def end_of_next(self, start: int, limits: SliceLimits, *, up_to: int | None = None) -> int:
        """The end of the slice after `start`; `start` itself when nothing of ours is there yet.

        After `skip_after` foreign events in a row it is their end: an empty slice once in a long while keeps
        a restarted stream from scanning them all again.

        Raises:
            ContractError: LOG_SET_BACK, the log ends before `start`.
        """
        asked_from, scanned_to = self._barren
        position = scanned_to if asked_from <= start < scanned_to else start
        last = self._log.last_seq() if up_to is None else up_to
        if last < start:
            self._log.check({"seq": start})
        end, files, size = start, 0, 0
        while position < last:
            part = self._log.read(position, last, _SCAN_ROWS, columns=_SCAN_COLUMNS)
            if part.num_rows == 0:
                break
            position = part.column("seq")[-1].as_py()
            ours = self._ours(part)
            sizes, seqs = ours.column("size").to_pylist(), ours.column("seq").to_pylist()
            for seq, file_size in zip(seqs, sizes, strict=True):
                if files and _exceeds(limits, files + 1, size + file_size):
                    return end
                end, files, size = seq, files + 1, size + file_size
        if files:
            return end
        self._barren = (start, position)
        return position if position - start >= self._skip_after else start

    def rows(self, start: int, end: int) -> pa.Table:
        """The slice's events, in order."""
        return self._ours(self._log.read(start, end))

    def _ours(self, events: pa.Table) -> pa.Table:
        return matching(events, bucket=self._bucket, prefix=self._prefix, glob=self._glob)

    def newest(self, after: int, *, scan_rows: int = 100_000) -> int:
        """The newest `seq` of ours known after `after`; looks at `scan_rows` more of the log with every
        call."""
        if after > self._newest_scanned:
            self._newest = self._newest_scanned = after
        part = self._log.read(self._newest_scanned, None, scan_rows, columns=_SCAN_COLUMNS)
        if part.num_rows:
            self._newest_scanned = part.column("seq")[-1].as_py()
            ours = self._ours(part)
            if ours.num_rows:
                self._newest = ours.column("seq")[-1].as_py()
        return max(self._newest, after)


def _exceeds(limits: SliceLimits, files: int, size: int) -> bool:
    too_many = limits.max_files is not None and files > limits.max_files
    return too_many or (limits.max_bytes is not None and size > limits.max_bytes)


FORMAT = "deltaworks_file_events"
_LOGGER = logging.getLogger(__name__)
_REQUIRED = ("environment", "relay", "bucket")
_OPTIONS = (*_REQUIRED, "prefix", "glob", "maxfiles", "maxbytes", "startseq", "startlog", "project")


def register(spark: SparkSession) -> None:
    """Make the source known to a session. Idempotent."""
    spark.dataSource.register(FileEventsDataSource)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The source's options, checked."""

    environment: str
    relay: str
    bucket: str
    prefix: str
    glob: str | None
    max_files: int
    max_bytes: int
    start_seq: int
    start_log: str
    project: Path

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StreamOptions:
        """Read the options as Spark hands them over: lower-cased names, text values.

        Raises:
            ConfigError: SOURCE_OPTION_INVALID naming the option.
        """
        named = known_options(FORMAT, options, _OPTIONS)
        for name in _REQUIRED:
            if not named.get(name):
                raise invalid_option(FORMAT, name, "is required")
        return cls(
            environment=named["environment"],
            relay=named["relay"],
            bucket=named["bucket"],
            prefix=named.get("prefix", ""),
            glob=named.get("glob"),
            max_files=number_option(FORMAT, named, "maxfiles", 500, high=LARGEST_BATCH_FILES),
            max_bytes=number_option(FORMAT, named, "maxbytes", 256 << 20),
            start_seq=number_option(FORMAT, named, "startseq", 0, low=0),
            start_log=named.get("startlog", ""),
            project=Path(named["project"]) if named.get("project") else _this_project(),
        )


def _this_project() -> Path:
    # The stream names its project: the declarations of everything that a catalog holds are not loaded for nothing.
    from deltaworks.specs.catalog import project_root

    return project_root()


@dataclass
class SlicePartition(InputPartition):
    """A batch's events as an Arrow stream."""

    data: bytes

    def __init__(self, data: bytes) -> None:
        self.data = data


class FileEventsDataSource(DataSource):
    """The streaming source; see the module."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        StreamOptions.parse(self.options)
        return from_arrow_schema(FILE_EVENT_SCHEMA)

    def streamReader(self, schema: StructType) -> FileEventsStreamReader:
        return FileEventsStreamReader(StreamOptions.parse(self.options))


class FileEventsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads batches. An exception here ends the query, so storage is waited for inside."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._planner: SlicePlanner | None = None
        self._log: FileEventLog | None = None
        self._target: int | None = None
        self._checked = False

    def initialOffset(self) -> dict[str, Any]:
        of_log = {"log": self._options.start_log} if self._options.start_log else {}
        return {"seq": self._options.start_seq, **of_log}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxFiles(self._options.max_files)

    def prepareForTriggerAvailableNow(self) -> None:
        def last_seq() -> int:
            return self._opened()[0].last_seq()

        self._target = patiently(last_seq)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._check(start)
        limits = slice_limits(limit, max_files=self._options.max_files, max_bytes=self._options.max_bytes)
        end = patiently(lambda: self._opened()[1].end_of_next(start["seq"], limits, up_to=self._target))
        # Spark compares offsets as JSON text: the same object is the sure way to say "nothing new".
        return start if end == start["seq"] else {"seq": end, "log": self._opened()[0].table_id}

    def reportLatestOffset(self) -> dict[str, Any] | None:
        try:
            newest = self._opened()[1].newest(self._options.start_seq)
        except Exception as error:  # a report must never end the query
            _LOGGER.warning("The newest file event is not known: %s", error)
            return None
        return {"seq": newest} if newest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if start["seq"] >= end["seq"]:
            return []
        self._check(end)
        rows = patiently(lambda: self._opened()[1].rows(start["seq"], end["seq"]))
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, FILE_EVENT_SCHEMA) as writer:
            writer.write_table(rows)
        return [SlicePartition(sink.getvalue())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SlicePartition):
            raise TypeError(f"{type(partition).__name__} is no partition of {FORMAT}")
        with pa.ipc.open_stream(partition.data) as reader:
            yield from reader

    def _check(self, position: dict[str, Any]) -> None:
        """Compare the log with the first position of a run; each run opens it again."""
        if not self._checked:
            patiently(lambda: self._opened()[0].check(position))
            self._checked = True

    def _opened(self) -> tuple[FileEventLog, SlicePlanner]:
        """The log, opened on first use: an instance that never planned is what travels to the tasks."""
        if self._log is None or self._planner is None:
            options = self._options
            path = options.project / "include" / "environments" / f"{options.environment}.yaml"
            self._log = FileEventLog(Lake(load_spec(EnvironmentSpec, path).lake), options.relay)
            self._planner = SlicePlanner(self._log, bucket=options.bucket, prefix=options.prefix, glob=options.glob)
        return self._log, self._planner
