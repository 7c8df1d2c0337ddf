"""A Delta table as a source: its rows become events, with the columns as fields.

Spark writes rows as JSON, which is parsed like other payloads, so types, rules and quarantine are the same. Within a
batch, a row's `_seq` is its number, because a table has no order of its own.

A table of this project is checked before it is read: rows that a merge, an in-place rewrite or a gold build replaced
would be read again as new rows. The change data feed marks changed rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import open_objects
from deltaworks.errors import ContractError
from deltaworks.events.chunks import Payload
from deltaworks.sources.base import RecordSlice
from deltaworks.sources.delta.losses import check_not_rolled_back, check_versions, loss_check
from deltaworks.sources.offset_ranges import OffsetRange
from deltaworks.sources.records import Record
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources.delta import DeltaSourceSpec
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

#: Operations that replace rows, by their names in Delta's history.
_REWRITE_OPERATIONS = frozenset({"MERGE", "UPDATE", "DELETE"})
_CHECKED_COMMITS = 50
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
        table: DeltaTable | None = Lake(self._catalog.environment.lake).open(key)
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
