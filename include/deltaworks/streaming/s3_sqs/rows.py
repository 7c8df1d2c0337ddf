"""From objects to rows of a declared schema, inside a task; what cannot be read is told, and never raised.

The forms and the types are those of pipelines: the same object gives the same rows both ways. Columns called `_bucket`,
`_key`, `_seq` and `_position` say where a row comes from, if the schema has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from deltaworks.errors import ConfigError
from deltaworks.specs.source import TEXT_FORMATS, FileSourceSpec
from deltaworks.specs.types import ColumnType, parse_type
from deltaworks.streaming.parsing.columns import Misfit, column
from deltaworks.streaming.parsing.forms import framer
from deltaworks.streaming.parsing.framing import Malformed
from deltaworks.streaming.parsing.parse import Payload
from deltaworks.streaming.parsing.path_fields import partition_fields
from deltaworks.streaming.parsing.reasons import WHOLE_OBJECT, ReasonCode
from deltaworks.streaming.parsing.text_framing import from_text

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
    events: list[Mapping[str, Any]] = field(default_factory=list)
    raws: list[bytes] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)


class RowReader:
    """Makes the rows of a schema out of payloads.

    Raises:
        ConfigError: SOURCE_SCHEMA_UNSUPPORTED, a type that no value of these forms has.
    """

    def __init__(self, schema: StructType, source: FileSourceSpec) -> None:
        self._target = to_arrow_schema(schema, timezone="UTC")
        self._kinds = [(each.name, _kind(each.name, each.dataType.simpleString())) for each in schema.fields]
        self._required = [each.name for each in schema.fields if not each.nullable]
        self._frame = framer(source)
        self._of_text = source.format in TEXT_FORMATS
        self._of_key = frozenset(source.partition_columns)
        self._partition_columns = source.partition_columns
        self._max_event_bytes = source.max_event_bytes

    def read(self, payload: Payload, *, bucket: str, unread: list[Unread]) -> Iterator[pa.RecordBatch]:
        """The rows of one payload; what gave none is added to `unread`."""
        if payload.problem is not None:
            unread.append(_whole(payload.problem.code, payload.problem.detail))
            return
        told = {"_bucket": bucket, "_key": payload.key, "_seq": payload.seq}
        told |= partition_fields(payload.key, self._partition_columns)
        gathered = _Gathered()
        try:
            for position, (value, raw) in enumerate(self._frame(payload.data or b"")):
                problem = self._problem(value, raw)
                if problem is not None:
                    unread.append(Unread(position, (problem,), raw[:_RAW_BYTES]))
                    continue
                gathered.events.append({**value, **told, "_position": position})
                gathered.raws.append(raw)
                gathered.positions.append(position)
                if len(gathered.events) >= _ROWS_AT_ONCE:
                    yield from self._rows(gathered, unread)
                    gathered = _Gathered()
        except Misfit as misfit:  # told before the first event
            unread.append(_whole(misfit.code, misfit.detail))
        yield from self._rows(gathered, unread)

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
            found = [event.get(name) for event in gathered.events]
            if self._of_text or name in self._of_key:
                found = [from_text(value, kind) for value in found]
            array, misfits = column(found, kind)
            for index, misfit in misfits.items():
                reasons.setdefault(index, []).append(_reason(misfit.code, name, misfit.detail))
            if name in self._required and array.null_count:
                for index in set(pc.indices_nonzero(pc.is_null(array)).to_pylist()) - misfits.keys():
                    missing = _reason(ReasonCode.MISSING_REQUIRED, name, f"{name} is missing")
                    reasons.setdefault(index, []).append(missing)
            arrays.append(array)
        unread += [
            Unread(gathered.positions[index], tuple(each), gathered.raws[index][:_RAW_BYTES])
            for index, each in sorted(reasons.items())
        ]
        table = pa.Table.from_arrays(arrays, names=[name for name, _ in self._kinds])
        if reasons:
            table = table.filter(pa.array([index not in reasons for index in range(table.num_rows)]))
        yield from table.cast(self._target).to_batches()


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
