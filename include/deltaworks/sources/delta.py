"""A Delta table as a source: its rows become events, with the columns as fields.

Spark writes rows as JSON, which is parsed like other payloads, so types, rules and quarantine are the same. Within a
batch, a row's `_seq` is its number, because a table has no order of its own.

A table of this project is checked before it is read: rows that a merge, an in-place rewrite or a gold build replaced
would be read again as new rows. The change data feed marks changed rows.

Data that was deleted before the stream read it, commits of the log or files that VACUUM deleted, cannot be recovered.
So the stream ends with an error that names the versions; Spark's own error names only a file, or would be retried.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.records.checkpoint import batch_numbers
from deltaworks.errors import ContractError
from deltaworks.events.chunks import Payload
from deltaworks.sources.base import LossCheck, OffsetRange, RecordSlice
from deltaworks.sources.records import Record
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources import DeltaSourceSpec
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import list_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

_MISSING_FILE = re.compile(r"FAILED_READ_FILE\.FILE_NOT_EXIST\] Encountered error while reading file (\S+?)\.? ")


def loss_check(reader: str, table_name: str) -> LossCheck:
    """Returns a check that ends the stream with SOURCE_EXPIRED if VACUUM deleted a file of a version that it must still
    read.

    Args:
        reader: the pipeline that reads the table.
    """

    def removed(error: Exception) -> ContractError | None:
        missing = _MISSING_FILE.search(str(error))
        if missing is None:
            return None
        return expired_error(reader, table_name, f"a file of a version it reads was removed, {missing.group(1)}")

    return LossCheck(expiry_error=removed)


def expired_error(reader: str, table_name: str, detail: str) -> ContractError:
    """Returns the error for data that was deleted before the stream read it."""
    return ContractError(
        "SOURCE_EXPIRED",
        f"{reader!r} has not read all of {table_name}: {detail}.",
        hint=(
            f"Read the current table with `deltaworks pipelines start-over {reader}`. Retain its log "
            "(delta.logRetentionDuration) and removed files for longer than the stream may be behind."
        ),
    )


def check_versions(objects: ObjectStore, reader: str, table_name: str, *, key: str, latest: int) -> None:
    """Raises if the table's log no longer has the version that the stream reads next.

    Args:
        key: key of the table, whose latest version is `latest`.

    Raises:
        ContractError: SOURCE_EXPIRED, with the missing versions.
    """
    next_version = _next_version(objects, reader)
    if next_version is None or next_version > latest:
        return
    commits = list_log(objects, key).commits
    first_retained = min((version for version in commits if version >= next_version), default=latest + 1)
    if first_retained > next_version:
        raise expired_error(
            reader, table_name, f"versions {next_version} to {first_retained - 1} are no longer in its log"
        )


def check_not_rolled_back(objects: ObjectStore, reader: str, table_name: str, *, pipeline: str, table: str) -> None:
    """Raises if the pipeline that writes the table was rolled back, because it commits the same rows again.

    Raises:
        ContractError: DELTA_SOURCE_ROLLED_BACK.
    """
    next_version = _next_version(objects, reader)
    versions = [] if next_version is None else PipelineHome(objects, pipeline).start_overs.rollback_versions(table)
    later = [version for version in versions if next_version is not None and version >= next_version]
    if later:
        raise ContractError(
            "DELTA_SOURCE_ROLLED_BACK",
            f"{table_name} was rolled back in version {max(later)}: {reader!r} has landed rows that were removed there "
            "and will be written again.",
            hint=(
                f"Read the current table with `deltaworks pipelines start-over {reader}`; not necessary with a "
                "change feed."
            ),
        )


def _next_version(objects: ObjectStore, reader: str) -> int | None:
    """Returns the table version that the query reads next; None before its first batch, or while it reads the initial
    snapshot.
    """
    generations = PipelineHome(objects, reader).generations
    recorded = generations.effective()
    folder = paths.checkpoint(reader, recorded.generation, recorded.current.ordinal)
    committed = batch_numbers(objects, f"{folder}/commits/")
    offset = generations.end_offset(recorded, committed[-1]) if committed else recorded.current.start
    return None if offset is None or offset.get("isStartingVersion") else int(offset["reservoirVersion"])


#: Operations that replace rows, by their names in Delta's history.
_REWRITE_OPERATIONS = frozenset({"MERGE", "UPDATE", "DELETE"})
_CHECKED_COMMITS = 50
#: Longest wait of the first start for a declared table, which the other pipeline creates at its own start.
_TABLE_SECONDS = 120.0
_POLL_SECONDS = 2.0
_JSON = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


class DeltaSource:
    """Reads the Delta table that a pipeline declares as its source."""

    def __init__(self, catalog: Catalog, spec: PipelineSpec) -> None:
        if not isinstance(spec.source, DeltaSourceSpec):
            raise TypeError(f"{spec.pipeline} reads {spec.source.kind}")
        self._source = spec.source
        self._reader = spec.pipeline
        self._catalog = catalog

    def frame(self, spark: SparkSession, *, start: dict[str, Any] | None) -> DataFrame:
        """Returns a streaming DataFrame of appended rows or, with the change data feed, of changes. Limits files and
        bytes per batch.

        Raises:
            ContractError: DELTA_SOURCE_MISSING, DELTA_SOURCE_REWRITTEN, DELTA_SOURCE_WITHOUT_CHANGES,
                DELTA_SOURCE_MID_VERSION, DELTA_SOURCE_ROLLED_BACK, SOURCE_EXPIRED.
        """
        source = self._source
        self._check(first_start=start is None and not self._has_checkpoint())
        options = {
            "maxFilesPerTrigger": str(source.max_files_per_batch),
            "maxBytesPerTrigger": str(source.max_bytes_per_batch),
            "readChangeFeed": str(source.change_feed).lower(),
            "skipChangeCommits": str(source.skip_change_commits).lower(),
            **self._start_options(start),
        }
        declared = {name: value for name, value in options.items() if value != "false"}
        return spark.readStream.format("delta").options(**declared).load(self._table_location(spark_work_count=True))

    def _start_options(self, start: dict[str, Any] | None) -> dict[str, str]:
        if start is not None:
            return {"startingVersion": str(self._version_after(start))}
        if self._source.starting_version is not None:
            return {"startingVersion": str(self._source.starting_version)}
        if self._source.starting_timestamp is not None:
            return {"startingTimestamp": self._source.starting_timestamp}
        # The feed has no rows of versions before it was enabled; the first snapshot is read as inserts.
        return {}

    def _version_after(self, start: dict[str, Any]) -> int:
        """Returns the table version at which a new checkpoint begins, from the end offset of the previous checkpoint.

        Raises if that offset lies inside a version: no option can skip the files that were read, and reading them again
        would duplicate rows.
        """
        if start.get("isStartingVersion") or int(start.get("index", -1)) >= 0:
            raise ContractError(
                "DELTA_SOURCE_MID_VERSION",
                f"{self._reader!r} lost its checkpoint in the middle of version {start.get('reservoirVersion')} of "
                f"{self._source.display_name()}. Spark cannot start a batch inside a version.",
                hint=(
                    "Restore the checkpoint, or read everything again with `deltaworks pipelines start-over "
                    f"{self._reader}`."
                ),
            )
        return int(start["reservoirVersion"])

    def _table_location(self, *, spark_work_count: bool) -> str:
        source, lake = self._source, self._catalog.environment.lake
        if source.uri is not None:
            return source.uri.replace("s3://", "s3a://", 1) if spark_work_count else source.uri
        key = paths.table(str(source.pipeline), str(source.table))
        return lake.spark_uri(key) if spark_work_count else lake.uri(key)

    def _has_checkpoint(self) -> bool:
        objects = open_objects(self._catalog.environment.lake)
        generations = PipelineHome(objects, self._reader).generations.read()
        if generations is None:
            return False
        folder = paths.checkpoint(self._reader, generations.generation, generations.current.ordinal)
        return objects.get(f"{folder}/metadata") is not None

    def _check(self, *, first_start: bool) -> None:
        source = self._source
        if source.uri is not None:
            return
        key = paths.table(str(source.pipeline), str(source.table))
        table = self._await_table(key) if first_start else Lake(self._catalog.environment.lake).open(key)
        if table is None:
            raise ContractError(
                "DELTA_SOURCE_MISSING", f"{self._reader!r} reads {source.display_name()}, which does not exist."
            )
        feed = table.metadata().configuration.get("delta.enableChangeDataFeed") == "true"
        if source.change_feed and not feed:
            raise ContractError("DELTA_SOURCE_WITHOUT_CHANGES", f"{source.display_name()} has no change data feed.")
        objects = open_objects(self._catalog.environment.lake)
        check_versions(objects, self._reader, source.display_name(), key=key, latest=table.version())
        if not source.change_feed:
            check_not_rolled_back(
                objects, self._reader, source.display_name(), pipeline=str(source.pipeline), table=str(source.table)
            )
        if first_start and not source.change_feed and not source.skip_change_commits:
            self._check_append_only(table)

    def _await_table(self, key: str) -> DeltaTable | None:
        """Opens the table. Waits for one that its pipeline declares, because both pipelines may just have started."""
        writer = self._catalog.pipelines.get(str(self._source.pipeline))
        is_declared = writer is not None and self._source.table in {table.name for table in writer.tables}
        lake, deadline = Lake(self._catalog.environment.lake), time.monotonic() + (_TABLE_SECONDS if is_declared else 0)
        while (table := lake.open(key)) is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return table

    def _check_append_only(self, table: DeltaTable) -> None:
        """Rejects a table whose rows are replaced: rebuilt or updated tables, and tables with a recent merge."""
        writer = self._catalog.pipeline(str(self._source.pipeline))
        rebuilt = {table.name for table in writer.gold.tables} | {table.name for table in writer.live}
        rebuilt |= {table.name for table in writer.keyed_tables}
        reason = "" if self._source.table not in rebuilt else "it is a gold, keyed or live table"
        for commit in table.history(_CHECKED_COMMITS):
            mode = (commit.get("operationParameters") or {}).get("mode")
            if commit.get("operation") in _REWRITE_OPERATIONS or mode == "Overwrite":
                reason = reason or f"{commit['operation']} rewrote rows in version {commit.get('version')}"
        if reason:
            raise ContractError(
                "DELTA_SOURCE_REWRITTEN",
                f"{self._reader!r} reads {self._source.display_name()}, whose rows are rewritten: {reason}.",
                hint=(
                    "Read its bronze table instead. Or declare `change_feed: true` and enable the feed, which "
                    "distinguishes inserts from changes. Or declare `skip_change_commits: true`, which skips "
                    "rewritten rows."
                ),
            )

    def slice_of(self, batch: DataFrame, *, batch_id: int, offsets: Callable[[], OffsetRange]) -> RecordSlice:
        """Returns the batch's rows as JSON, numbered within the batch."""
        from pyspark.sql import functions as F

        columns = [
            F.col(f"`{field.name}`").cast(_json_type(field.dataType)).alias(field.name) for field in batch.schema
        ]
        row = F.to_json(F.struct(*columns), _JSON).alias("row")
        frame = batch.select(F.monotonically_increasing_id().alias("position"), row)
        rows = RowReader(key=self._source.display_name(), seq=batch_id)
        return RecordSlice(frame, rows, loss_check(self._reader, self._source.display_name()))

    def backlog(self, progress: Mapping[str, Any] | None) -> dict[str, Any]:
        """Returns the number of files and bytes in versions that are not completely read."""
        if not progress:
            return {}
        metrics = progress.get("metrics") or {}
        metric_names = {"backlog_files": "numFilesOutstanding", "backlog_bytes": "numBytesOutstanding"}
        return {name: int(metrics[metric]) for name, metric in metric_names.items() if metric in metrics}


def _json_type(kind: DataType) -> DataType:
    """Returns the type with strings in place of decimals, because a JSON number would lose digits."""
    from pyspark.sql import types as T

    if isinstance(kind, T.DecimalType):
        return T.StringType()
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_json_type(kind.elementType), kind.containsNull)
    if isinstance(kind, T.MapType):
        return T.MapType(T.StringType(), _json_type(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(inner.name, _json_type(inner.dataType), inner.nullable) for inner in kind])
    return kind


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReader:
    """Converts rows written as JSON into payloads."""

    key: str
    seq: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Record]:
        for batch in batches:
            for position, row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                raw = row.encode()
                event = ((position, (json.loads(row), raw)),)
                yield Record(Payload(self.seq, self.key, raw, events=event, record={}), 0)
