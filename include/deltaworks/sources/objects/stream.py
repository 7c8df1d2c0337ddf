"""The PySpark streaming source `deltaworks_file_events`: one bucket and prefix of a relay's log.

Options: `environment` (a name under include/environments), `relay`, `bucket`; `prefix` and `glob` (all), `maxfiles`
(500) and `maxbytes` (268435456) per batch, `startseq` (0: the `seq` a new query starts after) and `startlog` (the log
it is a number of, where that is known), `project` (the folder the specs are in; by default this process's project). No
option holds a secret.

An offset is {"seq": n, "log": id}, n the last `seq` included and id that of the log whose number it is. Planning
happens in one Python process of the driver; the rows of a batch are fixed there and travel inside its only partition,
so tasks need no access to the log.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from deltaworks.sources.objects.log import FILE_EVENT_SCHEMA, FileEventLog
from deltaworks.sources.objects.slices import LARGEST_BATCH_FILES, SlicePlanner, patiently, slice_limits
from deltaworks.sources.stream_options import invalid_option, known_options, number_option
from deltaworks.specs.catalog import project_root
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.loading import load_spec
from deltaworks.tables.lake import Lake

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
            project=Path(named["project"]) if named.get("project") else project_root(),
        )


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
