"""Converts objects to rows of a schema inside a task. Content that cannot be read is returned as rejected, never
raised.

Formats, types and reasons equal those of pipelines, so both yield the same rows. Columns `_bucket`, `_key`, `_seq` and
`_position` give a row's origin, if the schema has them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from deltaworks.errors import ConfigError
from deltaworks.events.chunks import Payload
from deltaworks.events.columns import convert_column
from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.events import require_event
from deltaworks.events.formats.json import Malformed
from deltaworks.events.formats.registry import create_framer
from deltaworks.events.inference.column_types import PROVENANCE_COLUMNS, RESCUED_NAME, STRING
from deltaworks.events.inference.type_hints import parse_hints
from deltaworks.events.reasons import ENTIRE_OBJECT, Reason, ReasonCode, RejectedEvent
from deltaworks.events.source_fields import partition_fields
from deltaworks.events.table_columns import EventColumn, Reasons
from deltaworks.events.undeclared_fields import json_text
from deltaworks.sources.spark_formats.s3_sqs.inferred_schema import NewColumnDetector
from deltaworks.sources.spark_formats.s3_sqs.options import SchemaOptions
from deltaworks.sources.spark_formats.s3_sqs.rescued_data import (
    RescuedDataFinder,
    has_floats,
    is_canonical_number,
    is_exact,
    merge_leftovers,
    split_by_type,
)
from deltaworks.specs.sources.objects import FileSourceSpec
from deltaworks.specs.sources.payload import TEXT_FORMATS
from deltaworks.specs.types import ColumnType, parse_type

_ROWS_PER_BATCH = 10_000
_RAW_BYTES = 65_536


@dataclass(slots=True)
class _EventBuffer:
    """Buffered events of one payload. `leftovers` has, per event, the content that fits no column, by field."""

    events: list[Mapping[str, Any]] = field(default_factory=list)
    leftovers: list[dict[str, Any]] = field(default_factory=list)
    raw_values: list[bytes] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)


class RowReader:
    """Converts payloads into rows of a schema.

    Args:
        inference: settings of schema inference, if used; its mode decides whether leftovers get a column.
        detector: checks events with leftovers for new columns.

    Raises:
        ConfigError: SOURCE_SCHEMA_UNSUPPORTED, a column has a type that these formats cannot provide.
    """

    def __init__(
        self,
        schema: StructType,
        source: FileSourceSpec,
        *,
        inference: SchemaOptions | None = None,
        detector: NewColumnDetector | None = None,
    ) -> None:
        is_text = source.format in TEXT_FORMATS
        self._target = to_arrow_schema(schema, timezone="UTC")
        self._columns = [
            EventColumn(
                field.name,
                (field.name,),
                _parse_type(field.name, field.dataType.simpleString()),
                required=not field.nullable,
                values_are_text=is_text or field.name in source.partition_columns,
            )
            for field in schema.fields
        ]
        self._frame = create_framer(source)
        self._partition_columns = source.partition_columns
        self._max_event_bytes = source.max_event_bytes
        self._as_text = inference is not None and not inference.infer_types and source.format == "json"
        hints = parse_hints(inference.hints) if inference is not None else ()
        self._hinted = frozenset(hint.path[0].lower() for hint in hints)
        self._rescued_data: RescuedDataFinder | None = None
        self._detector = detector
        if inference is not None and inference.mode.has_rescued_data:
            other = {*PROVENANCE_COLUMNS, RESCUED_NAME, *source.partition_columns}
            self._rescued_data = RescuedDataFinder(
                [(column.name, column.kind) for column in self._columns if column.name not in other]
            )

    def read(self, payload: Payload, *, bucket: str, rejected: list[RejectedEvent]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of one payload; adds rejected events to `rejected`.

        Raises:
            NewFieldsError: from the detector.
        """
        if payload.problem is not None:
            rejected.append(_rejected(payload, ENTIRE_OBJECT, b"", payload.problem))
            return
        if self._detector is not None:
            self._detector.check_payload(payload)
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
                buffer.leftovers.append(self._leftovers(event))
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

    def _leftovers(self, event: Mapping[str, Any]) -> dict[str, Any]:
        leftovers = {} if self._rescued_data is None else self._rescued_data.find(event)
        if leftovers and self._detector is not None:
            self._detector.check_event(event)
        return leftovers

    def _rows(self, payload: Payload, buffer: _EventBuffer, rejected: list[RejectedEvent]) -> Iterator[pa.RecordBatch]:
        reasons: Reasons = {}
        arrays = [self._array(buffer, column, reasons) for column in self._columns if not self._is_rescued(column)]
        if self._rescued_data is not None:
            arrays.append(_rescued_column(buffer, reasons))
        rejected += [
            _rejected(payload, buffer.positions[index], buffer.raw_values[index], *row_reasons)
            for index, row_reasons in sorted(reasons.items())
        ]
        table = pa.Table.from_arrays(arrays, names=[column.name for column in self._columns])
        if reasons:
            table = table.filter(pa.array([index not in reasons for index in range(table.num_rows)]))
        yield from table.cast(self._target).to_batches()

    def _is_rescued(self, column: EventColumn) -> bool:
        return self._rescued_data is not None and column.name == RESCUED_NAME

    def _array(self, buffer: _EventBuffer, target: EventColumn, reasons: Reasons) -> pa.Array:
        """Returns a column as an Arrow array. A value that does not fit is rescued if rescued data is on, and a reason
        to reject its event otherwise.
        """
        values = target.values(buffer.events)
        if self._as_text and target.kind == STRING and not target.values_are_text:
            values = [_as_text(value) for value in values]
        array, errors = convert_column(values, target.kind)
        if self._rescued_data is not None:
            misfitting = {*errors, *self._inexact_indexes(buffer, target, values)}
            array, errors = _split_misfits(buffer, target, values, misfitting) if misfitting else array, {}
        target.add_reasons(reasons, array, errors)
        return array

    def _inexact_indexes(self, buffer: _EventBuffer, target: EventColumn, values: list[Any]) -> list[int]:
        """Returns the indexes of values that the column cannot represent exactly. Columns with a type hint may
        round."""
        if target.name.lower() in self._hinted:
            return []
        if target.values_are_text:
            return [
                index
                for index, (value, event) in enumerate(zip(values, buffer.events, strict=True))
                if not isinstance(value, str)
                and value is not None
                and not is_canonical_number(event[target.name], value)
            ]
        if not has_floats(target.kind):
            return []
        return [index for index, value in enumerate(values) if not is_exact(value, target.kind)]


def _as_text(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    try:
        return json_text(value)
    except ConversionError:
        return value  # not text, so it does not fit and becomes a leftover


def _split_misfits(
    buffer: _EventBuffer, target: EventColumn, values: list[Any], rejected_indexes: Collection[int]
) -> pa.Array:
    """Returns the column with the parts of values that fit. The remaining parts go to the events' leftovers."""
    name = target.name
    for index in rejected_indexes:
        text = buffer.events[index].get(name)
        accepted, leftover = split_by_type(values[index], target.kind)
        if isinstance(text, str) and (accepted is None or leftover is None):
            accepted, leftover = None, text
        values[index] = accepted
        buffer.leftovers[index][name] = merge_leftovers(leftover, buffer.leftovers[index].get(name))
    return convert_column(values, target.kind)[0]


def _rescued_column(buffer: _EventBuffer, reasons: Reasons) -> pa.Array:
    """Returns the leftovers as JSON, with the object's URI."""
    texts: list[str | None] = []
    for index, (leftovers, event) in enumerate(zip(buffer.leftovers, buffer.events, strict=True)):
        text = None
        if leftovers:
            try:
                text = json_text({"object": f"s3://{event['_bucket']}/{event['_key']}", "fields": leftovers})
            except ConversionError as misfit:
                reasons.setdefault(index, []).append(Reason(misfit.code, RESCUED_NAME, misfit.detail))
        texts.append(text)
    return pa.array(texts, pa.string())


def _parse_type(name: str, text: str) -> ColumnType:
    try:
        return parse_type(text)
    except ValueError as error:
        raise ConfigError("SOURCE_SCHEMA_UNSUPPORTED", f"Column {name!r} cannot be a {text}: {error}.") from None


def _rejected(payload: Payload, position: int, raw: bytes, *reasons: Reason) -> RejectedEvent:
    return RejectedEvent(payload.seq, position, payload.key, raw[:_RAW_BYTES], None, reasons)
