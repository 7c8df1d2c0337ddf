"""Converts objects to rows of a schema inside a task. Content that cannot be read is returned as rejected, never
raised.

Formats, types and reasons equal those of pipelines, so both yield the same rows. Columns `_bucket`, `_key`, `_seq` and
`_position` give a row's origin, if the schema has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from deltaworks.events.reasons import ENTIRE_OBJECT, Reason, ReasonCode, RejectedEvent
from deltaworks.events.source_fields import partition_fields
from deltaworks.events.table_columns import EventColumn, Reasons
from deltaworks.specs.sources.objects import FileSourceSpec
from deltaworks.specs.sources.payload import TEXT_FORMATS
from deltaworks.specs.types import ColumnType, parse_type

_ROWS_PER_BATCH = 10_000
_RAW_BYTES = 65_536


@dataclass(slots=True)
class _EventBuffer:
    """Buffered events of one payload."""

    events: list[Mapping[str, Any]] = field(default_factory=list)
    raw_values: list[bytes] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)


class RowReader:
    """Converts payloads into rows of a schema.

    Raises:
        ConfigError: SOURCE_SCHEMA_UNSUPPORTED, a column has a type that these formats cannot provide.
    """

    def __init__(self, schema: StructType, source: FileSourceSpec) -> None:
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
        arrays = [_array(buffer, column, reasons) for column in self._columns]
        rejected += [
            _rejected(payload, buffer.positions[index], buffer.raw_values[index], *row_reasons)
            for index, row_reasons in sorted(reasons.items())
        ]
        table = pa.Table.from_arrays(arrays, names=[column.name for column in self._columns])
        if reasons:
            table = table.filter(pa.array([index not in reasons for index in range(table.num_rows)]))
        yield from table.cast(self._target).to_batches()


def _array(buffer: _EventBuffer, target: EventColumn, reasons: Reasons) -> pa.Array:
    """Returns a column as an Arrow array. A value that does not fit is a reason to reject its event."""
    array, errors = convert_column(target.values(buffer.events), target.kind)
    target.add_reasons(reasons, array, errors)
    return array


def _parse_type(name: str, text: str) -> ColumnType:
    try:
        return parse_type(text)
    except ValueError as error:
        raise ConfigError("SOURCE_SCHEMA_UNSUPPORTED", f"Column {name!r} cannot be a {text}: {error}.") from None


def _rejected(payload: Payload, position: int, raw: bytes, *reasons: Reason) -> RejectedEvent:
    return RejectedEvent(payload.seq, position, payload.key, raw[:_RAW_BYTES], None, reasons)
