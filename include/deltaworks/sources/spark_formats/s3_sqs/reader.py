"""The reader of `format("s3-sqs")`: plans batches of files from the state's log and reads them in tasks.

An offset is {"seq": n, "log": id}: the last file included, and the id of its log. All other state is in
`stateLocation`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from deltaworks.control.objects import open_objects
from deltaworks.events.reasons import RejectedEvent
from deltaworks.sources.base import split_balanced
from deltaworks.sources.objects.slices import MAX_BATCH_FILES, SliceLimits, retry_storage
from deltaworks.sources.spark_formats.s3_sqs.file_quarantine import FileQuarantineTable, query_name, save_rejected
from deltaworks.sources.spark_formats.s3_sqs.options import S3SqsOptions
from deltaworks.sources.spark_formats.s3_sqs.query_relay import (
    LocatedFile,
    ObjectOpener,
    QueryRelay,
    list_slice,
    open_log,
)
from deltaworks.sources.spark_formats.s3_sqs.rows import RowReader
from deltaworks.specs.storage import resolved_variables, set_missing_variables
from deltaworks.tables.lake import Lake


def slice_limits(limit: ReadLimit, *, max_files: int, max_bytes: int) -> SliceLimits:
    """Returns Spark's read limit combined with the query's own limits."""
    match limit:
        case ReadAllAvailable():
            return SliceLimits(max_files=MAX_BATCH_FILES, max_bytes=None)
        case ReadMaxFiles(files) | ReadMaxRows(files):
            return SliceLimits(max_files=files, max_bytes=max_bytes)
        case ReadMaxBytes(size):
            return SliceLimits(max_files=max_files, max_bytes=size)
    return SliceLimits(max_files=max_files, max_bytes=max_bytes)


class FilesPartition(InputPartition):
    """A Spark input partition: the files of one task, with resolved secrets."""

    def __init__(self, files: list[LocatedFile], variables: dict[str, str]) -> None:
        self.files = files
        self.variables = variables


class S3SqsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in one driver process and reads them in tasks. Planning retries outages, because an exception ends
    the query.
    """

    def __init__(self, options: S3SqsOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._query = query_name(schema.json(), options.source.model_dump_json())
        RowReader(schema, options.source)  # rejects unsupported types before the query runs
        self._planning: _PlanningState | None = None
        self._max_seq: int | None = None
        self._is_checked = False

    def __getstate__(self) -> dict[str, Any]:
        # The planner has threads and connections and is not needed in tasks.
        return self.__dict__ | {"_planning": None}

    def initialOffset(self) -> dict[str, Any]:
        return {"seq": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxFiles(self._options.source.max_files_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        planning = self._open_planning()
        retry_storage(planning.relay.drain)
        self._max_seq = retry_storage(planning.log.last_seq)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        planning = self._open_planning()
        self._check(start)
        if self._max_seq is None:
            planning.relay.ensure_running()
        # Spark has committed the batch that ends here when it requests the next one.
        retry_storage(lambda: planning.quarantine.commit_up_to(start["seq"]))
        source = self._options.source
        limits = slice_limits(limit, max_files=source.max_files_per_batch, max_bytes=source.max_bytes_per_batch)
        end = retry_storage(lambda: planning.slices.next_end_offset(start["seq"], limits, up_to=self._max_seq))
        return start if end == start["seq"] else {"seq": end, "log": planning.log.table_id}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if start["seq"] >= end["seq"]:
            return []
        planning = self._open_planning()
        self._check(end)
        files_and_sizes = retry_storage(lambda: list_slice(planning.slices, start["seq"], end["seq"]))
        files, sizes = [where for where, _ in files_and_sizes], [max(1, size) for _, size in files_and_sizes]
        variables = resolved_variables(self._options.messaging) | resolved_variables(self._options.state)
        parts = split_balanced(files, sizes, self._options.max_partitions) if files else []
        return [FilesPartition(part, variables) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        part = cast(FilesPartition, partition)
        set_missing_variables(part.variables)
        reader = RowReader(self._schema, self._options.source)
        objects, opener = open_objects(self._options.state), ObjectOpener(self._options)
        for bucket, reference in part.files:
            rejected: list[RejectedEvent] = []
            batches = reader.read(opener((bucket, reference)), bucket=bucket, rejected=rejected)
            yield from (batch for batch in batches if batch.num_rows)
            if rejected:
                save_rejected(objects, self._query, reference, bucket=bucket, rejected=rejected)

    def stop(self) -> None:
        if self._planning is not None:
            self._planning.relay.stop()

    def _check(self, position: dict[str, Any]) -> None:
        """Rejects the first position of a run if it does not belong to the log; each run opens the log again."""
        if not self._is_checked:
            log = self._open_planning().log
            retry_storage(lambda: log.check_position(position))
            self._is_checked = True

    def _open_planning(self) -> _PlanningState:
        if self._planning is None:
            self._planning = _PlanningState(self._options, self._query)
        return self._planning


class _PlanningState:
    """The open resources of the planner process."""

    def __init__(self, options: S3SqsOptions, query: str) -> None:
        self.log, self.slices = open_log(options)
        self.quarantine = FileQuarantineTable(Lake(options.state), open_objects(options.state), query)
        self.relay = QueryRelay(options)
