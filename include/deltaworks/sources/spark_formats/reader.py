"""The reader of `format("s3-sqs")` and `format("cloudFiles")`: plans batches of files from the state's log, and reads
them in tasks.

An offset is {"seq": n, "log": id}: the last file included, and the id of its log. All other state is in
`stateLocation`.

Formats, types and reasons equal those of pipelines, so both yield the same rows. Columns `_bucket`, `_key`, `_seq` and
`_position` give a row's origin, if the schema has them. Content that cannot be read is rejected, never raised, and
written to the state's table `file_quarantine`, each item once: a task writes one object per file with rejected content,
which depends only on the file and the schema, so a retried task writes the same object. After a batch, the driver
commits these objects to the table in one idempotent step and deletes them.

With a column for rescued data, fields without a column, and values of another type, go there as JSON instead.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from deltaworks.control.clock import utc_now
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ConfigError
from deltaworks.events.chunks import Payload
from deltaworks.events.columns import convert_column
from deltaworks.events.events import require_event
from deltaworks.events.formats.json import Malformed
from deltaworks.events.formats.registry import create_framer
from deltaworks.events.lossless_numbers import parse_lossless
from deltaworks.events.reasons import ENTIRE_OBJECT, ConversionError, Reason, ReasonCode, RejectedEvent
from deltaworks.events.source_fields import partition_fields
from deltaworks.events.table_columns import EventColumn, Reasons, add_missing
from deltaworks.events.undeclared_fields import ReadFields, rescued_json, struct_fields, undeclared_fields
from deltaworks.sources.base import split_balanced
from deltaworks.sources.objects.payloads import FileReference
from deltaworks.sources.objects.slices import MAX_BATCH_FILES, SliceLimits, retry_storage
from deltaworks.sources.spark_formats.options import FileQueryOptions
from deltaworks.sources.spark_formats.query_relay import (
    LocatedFile,
    ObjectOpener,
    QueryRelay,
    list_slice,
    open_log,
)
from deltaworks.specs.descriptions import control_description
from deltaworks.specs.record_sources import TEXT_FORMATS
from deltaworks.specs.sources import FileSourceSpec
from deltaworks.specs.storage import resolved_variables, set_missing_variables
from deltaworks.specs.types import ColumnType, parse_declared_type
from deltaworks.tables.commit import Step
from deltaworks.tables.descriptions import ensure_described
from deltaworks.tables.lake import Lake

_ROWS_PER_BATCH = 10_000
_RAW_BYTES = 65_536
_ORIGIN_FIELDS = ("_bucket", "_key", "_seq", "_position")
#: The field of rescued data that has the file's key, as in Auto Loader.
_FILE_PATH_FIELD = "_file_path"


@dataclass(slots=True)
class _EventBuffer:
    """Buffered events of one payload."""

    events: list[dict[str, Any]] = field(default_factory=list)
    raw_values: list[bytes] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)


class RowReader:
    """Converts payloads into rows of a schema.

    Raises:
        ConfigError: SOURCE_SCHEMA_UNSUPPORTED, a column has a type that these formats cannot provide.
    """

    def __init__(self, schema: StructType, source: FileSourceSpec, *, rescued_column: str | None = None) -> None:
        is_text = source.format in TEXT_FORMATS
        self._target = to_arrow_schema(schema, timezone="UTC")
        rescued = [name for name in self._target.names if rescued_column and name.lower() == rescued_column.lower()]
        self._rescued_column = rescued[0] if rescued else None
        self._columns = [
            EventColumn(
                field.name,
                (field.name,),
                _parse_type(field.name, field.dataType.simpleString()),
                required=not field.nullable,
                values_are_text=is_text or field.name in source.partition_columns,
            )
            for field in schema.fields
            if field.name != self._rescued_column
        ]
        self._is_json = source.format == "json"
        self._read_fields: ReadFields = {column.name: struct_fields(column.kind) for column in self._columns}
        self._read_fields |= dict.fromkeys((*_ORIGIN_FIELDS, *source.partition_columns))
        self._frame = create_framer(source)
        self._partition_columns = source.partition_columns
        self._max_event_bytes = source.max_event_bytes

    def read(self, payload: Payload, *, bucket: str, rejected: list[RejectedEvent]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of one payload; adds rejected events to `rejected`."""
        if payload.problem is not None:
            rejected.append(_rejected(payload, ENTIRE_OBJECT, b"", payload.problem))
            return
        origin = {"_bucket": bucket, "_key": payload.key, "_seq": payload.seq}
        origin |= partition_fields(payload.key, self._partition_columns)
        buffer = _EventBuffer()
        try:
            for position, (value, raw) in enumerate(self._frame(payload.data or b"")):
                try:
                    event = self._check_event(value, raw)
                except ConversionError as misfit:
                    rejected.append(_rejected(payload, position, raw, Reason(misfit.code, "", misfit.detail)))
                    continue
                buffer.events.append({**event, **origin, "_position": position})
                buffer.raw_values.append(raw)
                buffer.positions.append(position)
                if len(buffer.events) >= _ROWS_PER_BATCH:
                    yield from self._rows(payload, buffer, rejected)
                    buffer = _EventBuffer()
        except ConversionError as misfit:  # raised before the first event
            rejected.append(_rejected(payload, ENTIRE_OBJECT, b"", Reason(misfit.code, "", misfit.detail)))
        yield from self._rows(payload, buffer, rejected)

    def _check_event(self, value: Any, raw: bytes) -> dict[str, Any]:
        if len(raw) > self._max_event_bytes and not isinstance(value, Malformed):
            raise ConversionError(ReasonCode.TOO_LARGE, f"{len(raw)} bytes, more than {self._max_event_bytes}")
        return require_event(value)

    def _rows(self, payload: Payload, buffer: _EventBuffer, rejected: list[RejectedEvent]) -> Iterator[pa.RecordBatch]:
        reasons: Reasons = {}
        if self._rescued_column is None:
            arrays = {column.name: _array(buffer, column, reasons) for column in self._columns}
        else:
            arrays = self._rescue(payload.key, buffer, reasons)
        rejected += [
            _rejected(payload, buffer.positions[index], buffer.raw_values[index], *row_reasons)
            for index, row_reasons in sorted(reasons.items())
        ]
        table = pa.table({name: arrays[name] for name in self._target.names})
        if reasons:
            table = table.filter(pa.array([index not in reasons for index in range(table.num_rows)]))
        yield from table.cast(self._target).to_batches()

    def _rescue(self, key: str, buffer: _EventBuffer, reasons: Reasons) -> dict[str, pa.Array]:
        """Returns all columns. Only a missing value of a NOT NULL column is a reason to reject its event."""
        extras = [undeclared_fields(event, self._read_fields) for event in buffer.events]
        arrays: dict[str, pa.Array] = {}
        for column in self._columns:
            values = column.values(buffer.events)
            arrays[column.name], errors = convert_column(values, column.kind)
            for index in errors:
                extras[index][column.name] = buffer.events[index][column.name]
            if column.required:
                add_missing(reasons, arrays[column.name], {}, column.name)
        texts = [self._rescued_text(key, extra, raw) for extra, raw in zip(extras, buffer.raw_values, strict=True)]
        return arrays | {str(self._rescued_column): pa.array(texts, pa.string())}

    def _rescued_text(self, key: str, extra: dict[str, Any], raw: bytes) -> str | None:
        if not extra:
            return None
        if not self._is_json:
            return rescued_json(extra | {_FILE_PATH_FIELD: key}, dict)
        return rescued_json(extra | {_FILE_PATH_FIELD: key}, partial(_load_lossless, raw, {_FILE_PATH_FIELD: key}))


def _load_lossless(raw: bytes, more: dict[str, Any]) -> Any:
    return parse_lossless(raw) | more


def _array(buffer: _EventBuffer, target: EventColumn, reasons: Reasons) -> pa.Array:
    """Returns a column as an Arrow array. A value that does not fit is a reason to reject its event."""
    array, errors = convert_column(target.values(buffer.events), target.kind)
    target.add_reasons(reasons, array, errors)
    return array


def _parse_type(name: str, text: str) -> ColumnType:
    try:
        return parse_declared_type(text)
    except ValueError as error:
        raise ConfigError("SOURCE_SCHEMA_UNSUPPORTED", f"Column {name!r} cannot be a {text}: {error}.") from None


def _rejected(payload: Payload, position: int, raw: bytes, *reasons: Reason) -> RejectedEvent:
    return RejectedEvent(payload.seq, position, payload.key, raw[:_RAW_BYTES], None, reasons)


FILE_QUARANTINE_KEY = "file_quarantine"
FILE_QUARANTINE_SCHEMA = pa.schema(
    [
        pa.field("bucket", pa.string()),
        pa.field("key", pa.string()),
        pa.field("etag", pa.string()),
        pa.field("seq", pa.int64()),
        pa.field("position", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("raw", pa.string()),
        pa.field("query", pa.string()),
        pa.field("noted_at", pa.timestamp("us", tz="UTC")),
    ]
)


def query_name(schema_json: str, source_json: str) -> str:
    """Returns a digest of a query's input and columns, which identifies the query among those that use one state."""
    return hashlib.blake2b(f"{source_json}\n{schema_json}".encode(), digest_size=8).hexdigest()


def save_rejected(
    objects: ObjectStore, query: str, reference: FileReference, *, bucket: str, rejected: Sequence[RejectedEvent]
) -> None:
    """Stores the rejected content of one file until its batch completes. Idempotent."""
    rows = [
        {
            "bucket": bucket,
            "key": reference.key,
            "etag": reference.etag,
            "seq": reference.seq,
            "position": row.position,
            "reason": ",".join(str(reason.code) for reason in row.reasons),
            "detail": "; ".join(f"{reason.path} {reason.detail}".strip() for reason in row.reasons),
            "raw": row.raw.decode("utf-8", "backslashreplace"),
            "query": query,
        }
        for row in rejected
    ]
    objects.put(f"{_folder(query)}{reference.seq:019d}.json", json.dumps(rows).encode())


class FileQuarantineTable:
    """Commits the rejected content that tasks stored to the table. Used by one thread of one driver."""

    def __init__(self, lake: Lake, objects: ObjectStore, query: str) -> None:
        self._lake = lake
        self._objects = objects
        self._query = query

    def commit_up_to(self, up_to_seq: int) -> int:
        """Commits rejected content of files up to `up_to_seq`, whose batch is complete; returns the number of rows.
        Idempotent.
        """
        keys = [key for key in self._objects.list(_folder(self._query)) if _seq_of(key) <= up_to_seq]
        if not keys:
            return 0
        metadata = user_metadata(pipeline="s3-sqs", batch=up_to_seq, operation="commit_rejected")
        table = ensure_described(
            self._lake,
            FILE_QUARANTINE_KEY,
            FILE_QUARANTINE_SCHEMA,
            control_description("file_quarantine"),
            user_metadata=metadata,
        )
        step = Step(f"s3-sqs/{self._query}", up_to_seq)
        committed_seq = table.transaction_version(step.app_id) or 0
        rows: list[dict[str, object]] = []
        for key in keys:
            stored = self._objects.get(key)
            if stored is not None and _seq_of(key) > committed_seq:
                rows += [{**row, "noted_at": utc_now()} for row in json.loads(stored.data)]
        if rows:
            self._lake.append(
                table,
                FILE_QUARANTINE_KEY,
                pa.Table.from_pylist(rows, FILE_QUARANTINE_SCHEMA),
                step=step,
                user_metadata=metadata,
            )
        for key in keys:
            self._objects.delete(key)
        return len(rows)


def _folder(query: str) -> str:
    return f"rejected/{query}/"


def _seq_of(key: str) -> int:
    return int(key.rpartition("/")[2].removesuffix(".json"))


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


class FileStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in one driver process and reads them in tasks. Planning retries outages, because an exception ends
    the query.
    """

    def __init__(self, options: FileQueryOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._query = query_name(schema.json(), options.source.model_dump_json())
        self._row_reader()  # rejects unsupported types before the query runs
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
        if end == start["seq"] and self._max_seq is None and retry_storage(planning.relay.list_files):
            end = retry_storage(lambda: planning.slices.next_end_offset(start["seq"], limits))
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
        reader = self._row_reader()
        objects, opener = open_objects(self._options.state), ObjectOpener(self._options)
        for bucket, reference in part.files:
            rejected: list[RejectedEvent] = []
            batches = reader.read(opener((bucket, reference)), bucket=bucket, rejected=rejected)
            yield from (batch for batch in batches if batch.num_rows)
            if rejected:
                save_rejected(objects, self._query, reference, bucket=bucket, rejected=rejected)

    def _row_reader(self) -> RowReader:
        return RowReader(self._schema, self._options.source, rescued_column=self._options.rescued_column)

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

    def __init__(self, options: FileQueryOptions, query: str) -> None:
        self.log, self.slices = open_log(options)
        self.quarantine = FileQuarantineTable(Lake(options.state), open_objects(options.state), query)
        self.relay = QueryRelay(options)
