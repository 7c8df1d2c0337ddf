"""From objects to rows of a declared schema, inside a task; what cannot be read is told, and never raised.

The forms and the types are those of pipelines: the same object gives the same rows both ways. Columns called `_bucket`,
`_key`, `_seq` and `_position` say where a row comes from, if the schema has them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from deltaworks.errors import ConfigError
from deltaworks.events.columns import Misfit, column
from deltaworks.events.formats.json import Malformed
from deltaworks.events.formats.registry import framer
from deltaworks.events.formats.text import from_text
from deltaworks.events.inference.column_types import RESCUED, STRING, TOLD
from deltaworks.events.inference.hints import parse_hints
from deltaworks.events.parse import Payload
from deltaworks.events.path_fields import partition_fields
from deltaworks.events.reasons import WHOLE_OBJECT, ReasonCode
from deltaworks.sources.spark_formats.s3_sqs.new_columns import ColumnWatch
from deltaworks.sources.spark_formats.s3_sqs.rescue import (
    Rescue,
    has_doubles,
    joined,
    json_text,
    rescued_json,
    split,
    stays_exact,
    tells_the_text,
)
from deltaworks.sources.spark_formats.s3_sqs.schema_options import SchemaOptions
from deltaworks.specs.source import TEXT_FORMATS, FileSourceSpec
from deltaworks.specs.types import ColumnType, parse_type

_ROWS_AT_ONCE = 10_000
_RAW_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Unread:
    """An object, or one event of it, that gave no row. `position` is -1 for a whole object."""

    position: int
    reasons: tuple[Mapping[str, str], ...]
    raw: bytes = b""


@dataclass(slots=True)
class _Gathered:
    """`left` has of each event what no column takes, by column, where that is kept."""

    events: list[Mapping[str, Any]] = field(default_factory=list)
    left: list[dict[str, Any]] = field(default_factory=list)
    raws: list[bytes] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)


class RowReader:
    """Makes the rows of a schema out of payloads.

    Args:
        inference: how columns were found, where they were: then what no column takes has one of its own, if the mode
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
        watch: ColumnWatch | None = None,
    ) -> None:
        self._target = to_arrow_schema(schema, timezone="UTC")
        self._kinds = [(each.name, _kind(each.name, each.dataType.simpleString())) for each in schema.fields]
        self._required = [each.name for each in schema.fields if not each.nullable]
        self._frame = framer(source)
        self._of_text = source.format in TEXT_FORMATS
        self._of_key = frozenset(source.partition_columns)
        self._partition_columns = source.partition_columns
        self._max_event_bytes = source.max_event_bytes
        self._as_text = inference is not None and not inference.typed and source.format == "json"
        hints = parse_hints(inference.hints) if inference is not None else ()
        self._hinted = frozenset(hint.path[0].lower() for hint in hints)
        self._rescue: Rescue | None = None
        self._watch = watch
        if inference is not None and inference.mode.rescues:
            other = {*TOLD, RESCUED, *source.partition_columns}
            self._rescue = Rescue([(name, kind) for name, kind in self._kinds if name not in other])

    def read(self, payload: Payload, *, bucket: str, unread: list[Unread]) -> Iterator[pa.RecordBatch]:
        """The rows of one payload; what gave none is added to `unread`.

        Raises:
            NewFields: as the watch says.
        """
        if payload.problem is not None:
            unread.append(_whole(payload.problem.code, payload.problem.detail))
            return
        if self._watch is not None:
            self._watch.check_payload(payload)
        told = {"_bucket": bucket, "_key": payload.key, "_seq": payload.seq}
        told |= partition_fields(payload.key, self._partition_columns)
        gathered = _Gathered()
        try:
            for position, (value, raw) in enumerate(self._frame(payload.data or b"")):
                problem = self._problem(value, raw)
                if problem is not None:
                    unread.append(Unread(position, (problem,), raw[:_RAW_BYTES]))
                    continue
                gathered.left.append(self._left(value))
                gathered.events.append({**value, **told, "_position": position})
                gathered.raws.append(raw)
                gathered.positions.append(position)
                if len(gathered.events) >= _ROWS_AT_ONCE:
                    yield from self._rows(gathered, unread)
                    gathered = _Gathered()
        except Misfit as misfit:  # told before the first event
            unread.append(_whole(misfit.code, misfit.detail))
        yield from self._rows(gathered, unread)

    def _left(self, event: Mapping[str, Any]) -> dict[str, Any]:
        left = {} if self._rescue is None else self._rescue.beyond(event)
        if left and self._watch is not None:
            self._watch.check_event(event)
        return left

    def _problem(self, value: Any, raw: bytes) -> dict[str, str] | None:
        if isinstance(value, Malformed):
            return _reason(ReasonCode.MALFORMED, "", value.detail)
        if len(raw) > self._max_event_bytes:
            return _reason(ReasonCode.TOO_LARGE, "", f"{len(raw)} bytes, more than {self._max_event_bytes}")
        if not isinstance(value, dict):
            return _reason(ReasonCode.NOT_AN_OBJECT, "", f"found a {type(value).__name__}, not an object")
        return None

    def _rows(self, gathered: _Gathered, unread: list[Unread]) -> Iterator[pa.RecordBatch]:
        reasons: dict[int, list[dict[str, str]]] = {}
        arrays = []
        for name, kind in self._kinds:
            if name == RESCUED and self._rescue is not None:
                continue
            found = self._found(gathered, name, kind)
            array, misfits = column(found, kind)
            if self._rescue is not None:
                misfitting = {*misfits, *self._inexact(gathered, name, kind, found)}
                array, misfits = _apart(gathered, name, kind, found, misfitting) if misfitting else array, {}
            for index, misfit in misfits.items():
                reasons.setdefault(index, []).append(_reason(misfit.code, name, misfit.detail))
            if name in self._required and array.null_count:
                for index in set(pc.indices_nonzero(pc.is_null(array)).to_pylist()) - misfits.keys():
                    missing = _reason(ReasonCode.MISSING_REQUIRED, name, f"{name} is missing")
                    reasons.setdefault(index, []).append(missing)
            arrays.append(array)
        if self._rescue is not None:
            arrays.append(_rescued(gathered, reasons))
        unread += [
            Unread(gathered.positions[index], tuple(each), gathered.raws[index][:_RAW_BYTES])
            for index, each in sorted(reasons.items())
        ]
        table = pa.Table.from_arrays(arrays, names=[name for name, _ in self._kinds])
        if reasons:
            table = table.filter(pa.array([index not in reasons for index in range(table.num_rows)]))
        yield from table.cast(self._target).to_batches()

    def _inexact(self, gathered: _Gathered, name: str, kind: ColumnType, found: list[Any]) -> list[int]:
        """Values that the column would take as others; one that was hinted at is as somebody wants it."""
        if name.lower() in self._hinted:
            return []
        if self._of_text or name in self._of_key:
            return [
                index
                for index, (value, event) in enumerate(zip(found, gathered.events, strict=True))
                if not isinstance(value, str) and value is not None and not tells_the_text(event[name], value)
            ]
        if not has_doubles(kind):
            return []
        return [index for index, value in enumerate(found) if not stays_exact(value, kind)]

    def _found(self, gathered: _Gathered, name: str, kind: ColumnType) -> list[Any]:
        """The values of a column, as far as they can be read as its type."""
        found = [event.get(name) for event in gathered.events]
        if self._of_text or name in self._of_key:
            return [from_text(value, kind) for value in found]
        if self._as_text and kind == STRING:
            return [_as_text(value) for value in found]
        return found


def _as_text(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    try:
        return json_text(value)
    except Misfit:
        return value  # no text; told as such where it is left over


def _apart(gathered: _Gathered, name: str, kind: ColumnType, found: list[Any], misfits: Collection[int]) -> pa.Array:
    """The column with what fits of values that do not; the rest is left over."""
    for index in misfits:
        written = gathered.events[index].get(name)
        fits, rest = split(found[index], kind)
        if isinstance(written, str) and (fits is None or rest is None):
            fits, rest = None, written
        found[index] = fits
        gathered.left[index][name] = joined(rest, gathered.left[index].get(name))
    return column(found, kind)[0]


def _rescued(gathered: _Gathered, reasons: dict[int, list[dict[str, str]]]) -> pa.Array:
    """What no column takes, as JSON."""
    texts: list[str | None] = []
    for index, (left, event) in enumerate(zip(gathered.left, gathered.events, strict=True)):
        text = None
        if left:
            try:
                text = rescued_json(left, object_uri=f"s3://{event['_bucket']}/{event['_key']}")
            except Misfit as misfit:
                reasons.setdefault(index, []).append(_reason(misfit.code, RESCUED, misfit.detail))
        texts.append(text)
    return pa.array(texts, pa.string())


def _kind(name: str, text: str) -> ColumnType:
    try:
        return parse_type(text)
    except ValueError as error:
        raise ConfigError(
            "SOURCE_SCHEMA_UNSUPPORTED", f"Column {name!r} cannot be a {text}: {error}.", hint="Mend the schema."
        ) from None


def _whole(code: str, detail: str) -> Unread:
    return Unread(WHOLE_OBJECT, (_reason(code, "", detail),))


def _reason(code: str, path: str, detail: str) -> dict[str, str]:
    return {"code": str(code), "path": path, "detail": detail}


def batches_of(found: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Those that hold a row."""
    return (batch for batch in found if batch.num_rows)
