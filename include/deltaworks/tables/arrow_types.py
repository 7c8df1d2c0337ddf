"""Maps declared column types to Arrow types the way Spark and Delta do.

Timestamps are microseconds in UTC. All fields are nullable, because events may omit optional values.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from deltaworks.specs.types import Array, ColumnType, Decimal, Map, Primitive, Struct, parse_type

_PRIMITIVES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "binary": pa.binary(),
}


def arrow_type(declared_type: ColumnType | str) -> pa.DataType:
    """Returns the Arrow type of a declared type."""
    if isinstance(declared_type, str):
        declared_type = parse_type(declared_type)
    match declared_type:
        case Primitive(name):
            return _PRIMITIVES[name]
        case Decimal(precision, scale):
            return pa.decimal128(precision, scale)
        case Array(element):
            return pa.list_(pa.field("element", arrow_type(element)))
        case Map(value):
            return pa.map_(pa.string(), arrow_type(value))
        case Struct(fields):
            return pa.struct([pa.field(name, arrow_type(field)) for name, field in fields])


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    """Returns the Arrow schema for declared types by column name, in order."""
    return pa.schema([pa.field(name, arrow_type(declared_type)) for name, declared_type in columns.items()])
