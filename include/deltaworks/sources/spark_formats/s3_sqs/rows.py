"""From objects to rows of a schema, inside a task; what cannot be read is handed back, and never raised.

Forms, types and reasons are those of pipelines: the same object gives the same rows both ways. Columns called
`_bucket`, `_key`, `_seq` and `_position` say where a row comes from, if the schema has them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from deltaworks.errors import ConfigError
from deltaworks.events.columns import convert_column
from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.events import require_event
from deltaworks.events.formats.json import Malformed
from deltaworks.events.formats.registry import create_framer
from deltaworks.events.inference.column_types import PROVENANCE_COLUMNS, RESCUED_NAME, STRING
from deltaworks.events.inference.type_hints import parse_hints
from deltaworks.events.parse import Payload
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
    """Events of one payload. `left` has of each what no column takes, by column, where that is kept."""

    events: list[Mapping[str, Any]] = field(default_factory=list)
    leftovers: list[dict[str, Any]] = field(default_factory=list)
    raw_values: list[bytes] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)


class RowReader:
    """Makes the rows of a schema out of payloads.

    Args:
        inference: how columns were inferred, where they were: then what no column takes has one of its own, if the mode
            says so. watch: looks at events that have something for it.

    Raises:
        ConfigError: SOURCE_SCHEMA_UNSUPPORTED, a type that no value of these forms has.
    """

    def __init__(
        self,
        schema: StructType,
        source: FileSourceSpec,
        *,
        inference: SchemaOptions | None = None,
        detector: NewColumnDetector | None = None,
    ) -> None:
        of_text = source.format in TEXT_FORMATS
        self._target = to_arrow_schema(schema, timezone="UTC")
        self._columns = [
            EventColumn(
                field.name,
                (field.name,),
                _parse_type(field.name, field.dataType.simpleString()),
                required=not field.nullable,
                values_are_text=of_text or field.name in source.partition_columns,
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
        """The rows of one payload; what gave none is added to `unread`.

        Raises:
            NewFields: as the watch says.
        """
        if payload.problem is not None:
            rejected.append(_rejected(payload, ENTIRE_OBJECT, b"", payload.problem))
            return
        if self._detector is not None:
            self._detector.check_payload(payload)
        origin = {"_bucket": bucket, "_key": payload.key, "_seq": payload.seq}
        origin |= partition_fields(payload.key, self._partition_columns)
        gathered = _EventBuffer()
        try:
            for position, (value, raw) in enumerate(self._frame(payload.data or b"")):
                try:
                    event = self._check_event(value, raw)
                except ConversionError as misfit:
                    rejected.append(_rejected(payload, position, raw, Reason(misfit.code, "", misfit.detail)))
                    continue
                gathered.leftovers.append(self._leftovers(event))
                gathered.events.append({**event, **origin, "_position": position})
                gathered.raw_values.append(raw)
                gathered.positions.append(position)
                if len(gathered.events) >= _ROWS_PER_BATCH:
                    yield from self._rows(payload, gathered, rejected)
                    gathered = _EventBuffer()
        except ConversionError as misfit:  # raised before the first event
            rejected.append(_rejected(payload, ENTIRE_OBJECT, b"", Reason(misfit.code, "", misfit.detail)))
        yield from self._rows(payload, gathered, rejected)

    def _check_event(self, value: Any, raw: bytes) -> dict[str, Any]:
        if len(raw) > self._max_event_bytes and not isinstance(value, Malformed):
            raise ConversionError(ReasonCode.TOO_LARGE, f"{len(raw)} bytes, more than {self._max_event_bytes}")
        return require_event(value)

    def _leftovers(self, event: Mapping[str, Any]) -> dict[str, Any]:
        left = {} if self._rescued_data is None else self._rescued_data.find(event)
        if left and self._detector is not None:
            self._detector.check_event(event)
        return left

    def _rows(
        self, payload: Payload, gathered: _EventBuffer, rejected: list[RejectedEvent]
    ) -> Iterator[pa.RecordBatch]:
        reasons: Reasons = {}
        arrays = [self._array(gathered, column, reasons) for column in self._columns if not self._is_rescued(column)]
        if self._rescued_data is not None:
            arrays.append(_rescued_column(gathered, reasons))
        rejected += [
            _rejected(payload, gathered.positions[index], gathered.raw_values[index], *misfits)
            for index, misfits in sorted(reasons.items())
        ]
        table = pa.Table.from_arrays(arrays, names=[column.name for column in self._columns])
        if reasons:
            table = table.filter(pa.array([index not in reasons for index in range(table.num_rows)]))
        yield from table.cast(self._target).to_batches()

    def _is_rescued(self, column: EventColumn) -> bool:
        return self._rescued_data is not None and column.name == RESCUED_NAME

    def _array(self, gathered: _EventBuffer, target: EventColumn, reasons: Reasons) -> pa.Array:
        """The values of a column. What does not fit is left over where leftovers are kept, else a reason."""
        values = target.values(gathered.events)
        if self._as_text and target.kind == STRING and not target.values_are_text:
            values = [_as_text(value) for value in values]
        array, misfits = convert_column(values, target.kind)
        if self._rescued_data is not None:
            misfitting = {*misfits, *self._inexact_indexes(gathered, target, values)}
            array, misfits = _split_misfits(gathered, target, values, misfitting) if misfitting else array, {}
        target.add_reasons(reasons, array, misfits)
        return array

    def _inexact_indexes(self, gathered: _EventBuffer, target: EventColumn, values: list[Any]) -> list[int]:
        """Values that the column would take as others; one that was hinted at is as somebody wants it."""
        if target.name.lower() in self._hinted:
            return []
        if target.values_are_text:
            return [
                index
                for index, (value, event) in enumerate(zip(values, gathered.events, strict=True))
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
        return value  # no text, which makes it a misfit and is left over


def _split_misfits(
    gathered: _EventBuffer, target: EventColumn, values: list[Any], misfits: Collection[int]
) -> pa.Array:
    """The column with what fits of values that do not; the rest is left over."""
    name = target.name
    for index in misfits:
        written = gathered.events[index].get(name)
        fits, rest = split_by_type(values[index], target.kind)
        if isinstance(written, str) and (fits is None or rest is None):
            fits, rest = None, written
        values[index] = fits
        gathered.leftovers[index][name] = merge_leftovers(rest, gathered.leftovers[index].get(name))
    return convert_column(values, target.kind)[0]


def _rescued_column(gathered: _EventBuffer, reasons: Reasons) -> pa.Array:
    """What no column takes, as JSON with the address of the object."""
    texts: list[str | None] = []
    for index, (left, event) in enumerate(zip(gathered.leftovers, gathered.events, strict=True)):
        text = None
        if left:
            try:
                text = json_text({"object": f"s3://{event['_bucket']}/{event['_key']}", "fields": left})
            except ConversionError as misfit:
                reasons.setdefault(index, []).append(Reason(misfit.code, RESCUED_NAME, misfit.detail))
        texts.append(text)
    return pa.array(texts, pa.string())


def _parse_type(name: str, text: str) -> ColumnType:
    try:
        return parse_type(text)
    except ValueError as error:
        raise ConfigError(
            "SOURCE_SCHEMA_UNSUPPORTED", f"Column {name!r} cannot be a {text}: {error}.", hint="Mend the schema."
        ) from None


def _rejected(payload: Payload, position: int, raw: bytes, *reasons: Reason) -> RejectedEvent:
    return RejectedEvent(payload.seq, position, payload.key, raw[:_RAW_BYTES], None, reasons)
