"""Reads the shapes of Parquet and Avro objects from their schemas, without reading values.

The types are those of parsed events: times of day and bytes are texts, durations are numbers.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from deltaworks.events.inference.column_types import (
    ARRAY,
    BOOLEAN,
    DATE,
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    LARGE,
    MAP,
    MAX_DEPTH,
    NULL,
    OBJECT,
    OPAQUE,
    TEXT,
    TIMESTAMP,
    Shape,
)

_AVRO_KINDS = {
    "null": NULL,
    "boolean": BOOLEAN,
    "int": INT32,
    "long": INT64,
    "float": FLOAT32,
    "double": FLOAT64,
    "bytes": TEXT,
    "string": TEXT,
    "fixed": TEXT,
    "enum": TEXT,
}
_AVRO_LOGICAL_KINDS = {
    "date": DATE,
    "timestamp-millis": TIMESTAMP,
    "timestamp-micros": TIMESTAMP,
    "local-timestamp-millis": TIMESTAMP,
    "local-timestamp-micros": TIMESTAMP,
    "time-millis": TEXT,
    "time-micros": TEXT,
    "uuid": TEXT,
}
_MAX_DIGITS = 38


def parquet_shape(payload: bytes) -> tuple[Shape, int]:
    """Returns the shape and the number of rows of a Parquet object.

    Raises:
        pyarrow.ArrowException, OSError: the footer is unreadable.
    """
    file = pq.ParquetFile(pa.BufferReader(payload))
    shape, rows = Shape(), file.metadata.num_rows
    # Files without rows declare columns too.
    shape.kinds[OBJECT] += max(1, rows)
    for position, column in enumerate(file.schema_arrow):
        _add_arrow_type(shape.field_shape(column.name, position), column.type, max(1, rows), 1)
    return shape, rows


def _add_arrow_type(shape: Shape, kind: pa.DataType, count: int, depth: int) -> None:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    shape.kinds[_arrow_kind(kind, depth)] += count
    if depth >= MAX_DEPTH:
        return
    if pa.types.is_struct(kind):
        for position, inner in enumerate(kind):
            _add_arrow_type(shape.field_shape(inner.name, position), inner.type, count, depth + 1)
    elif pa.types.is_map(kind):
        _add_arrow_type(shape.element_shape(), kind.item_type, count, depth + 1)
    elif _is_list(kind):
        _add_arrow_type(shape.element_shape(), kind.value_type, count, depth + 1)


def _is_list(kind: pa.DataType) -> bool:
    return any(is_type(kind) for is_type in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def _arrow_kind(kind: pa.DataType, depth: int) -> str:
    if pa.types.is_struct(kind) or pa.types.is_map(kind) or _is_list(kind):
        if depth >= MAX_DEPTH:
            return OPAQUE
        return OBJECT if pa.types.is_struct(kind) else MAP if pa.types.is_map(kind) else ARRAY
    if pa.types.is_decimal(kind):
        return _decimal_kind(kind.precision, kind.scale)
    for is_type, name in _ARROW_KINDS:
        if is_type(kind):
            return name
    return OPAQUE


def _decimal_kind(precision: int, scale: int) -> str:
    return f"decimal({precision},{scale})" if 0 <= scale <= precision <= _MAX_DIGITS else TEXT


_ARROW_KINDS = (
    (pa.types.is_null, NULL),
    (pa.types.is_boolean, BOOLEAN),
    (pa.types.is_uint64, LARGE),
    (lambda kind: pa.types.is_int64(kind) or pa.types.is_uint32(kind), INT64),
    (pa.types.is_integer, INT32),
    (pa.types.is_float64, FLOAT64),
    (pa.types.is_floating, FLOAT32),
    (pa.types.is_date, DATE),
    (pa.types.is_timestamp, TIMESTAMP),
    (pa.types.is_time, TEXT),
    (pa.types.is_duration, FLOAT64),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), TEXT),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), TEXT),
    (pa.types.is_fixed_size_binary, TEXT),
)


def avro_shape(payload: bytes) -> tuple[Shape, int]:
    """Returns the shape of an Avro container and its announced number of records, up to the first unreadable block.

    Raises:
        Exception: the header is corrupt.
    """
    blocks = fastavro.block_reader(io.BytesIO(payload))
    records = 0
    try:
        for block in blocks:
            records += block.num_records
    except Exception:  # the parser reports the rest
        records = max(1, records)
    shape = Shape()
    _add_avro_type(shape, blocks.writer_schema, max(1, records), {}, ())
    return shape, records


def _add_avro_type(shape: Shape, declared: Any, count: int, named: dict[str, Any], enclosing: tuple[str, ...]) -> None:
    """Adds a declared type to the shape. `named` has the named types so far, `enclosing` the types around this one."""
    if isinstance(declared, list):
        for branch in declared:
            _add_avro_type(shape, branch, count, named, enclosing)
        return
    if isinstance(declared, str):
        declared = named.get(declared, declared)
    name = str(declared.get("name", "")) if isinstance(declared, Mapping) else ""
    if name:
        named[name] = declared
    # A recursive record would never end.
    kind = OPAQUE if name and name in enclosing else _avro_kind(declared, len(enclosing))
    shape.kinds[kind] += count
    enclosing = (*enclosing, name)
    if kind == OBJECT:
        for position, inner in enumerate(declared["fields"]):
            _add_avro_type(shape.field_shape(inner["name"], position), inner["type"], count, named, enclosing)
    elif kind in (ARRAY, MAP):
        _add_avro_type(shape.element_shape(), declared["items" if kind == ARRAY else "values"], count, named, enclosing)


def _avro_kind(declared: Any, depth: int) -> str:
    name = declared.get("type") if isinstance(declared, Mapping) else declared
    if name in ("record", "array", "map"):
        return OPAQUE if depth >= MAX_DEPTH else {"record": OBJECT, "array": ARRAY, "map": MAP}[name]
    if isinstance(declared, Mapping):
        logical = declared.get("logicalType")
        if logical == "decimal":
            return _decimal_kind(int(declared.get("precision", 0)), int(declared.get("scale", 0)))
        if logical in _AVRO_LOGICAL_KINDS:
            return _AVRO_LOGICAL_KINDS[logical]
    return _AVRO_KINDS.get(str(name), OPAQUE)
