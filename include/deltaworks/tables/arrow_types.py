"""Maps declared column types to Arrow types the way Spark and Delta do, and casts rows of older files to them.

Timestamps are microseconds in UTC. All fields are nullable, because events may omit optional values.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from deltaworks.specs.types import VARIANT, Array, ColumnType, Decimal, Map, Primitive, Struct, parse_type

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
    VARIANT: pa.struct([pa.field(name, pa.binary(), nullable=False) for name in ("metadata", "value")]),
}
VARIANT_TYPE = _PRIMITIVES[VARIANT]


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


def rows_as_declared(
    rows: pa.RecordBatch, columns: pa.Schema, *, partition: Mapping[str, str | None] | None = None
) -> pa.RecordBatch:
    """Returns a batch with exactly these columns. Columns that an older file lacks are null; all others are dropped.

    Args:
        partition: values of columns that the file lacks because it belongs to one partition.

    Raises:
        ArrowInvalid: a value does not fit the column's type.
    """
    arrays = []
    for column in columns:
        index = rows.schema.get_field_index(column.name)
        text = (partition or {}).get(column.name)
        try:
            if index >= 0:
                arrays.append(cast_values(rows.column(index), column.type))
            elif text:
                arrays.append(pa.repeat(pa.scalar(text, pa.string()).cast(column.type), rows.num_rows))
            else:
                arrays.append(pa.nulls(rows.num_rows, column.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise pa.ArrowInvalid(f"{column.name} of an older file cannot be cast to {column.type}: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def cast_values(values: pa.Array, target_type: pa.DataType) -> pa.Array:
    """Casts values to a type without losing data; struct fields that the values lack become null.

    Raises:
        ArrowInvalid, ArrowNotImplementedError, ArrowTypeError: a value or field would be lost.
    """
    if values.type == target_type:
        return values
    if pa.types.is_struct(target_type) and pa.types.is_struct(values.type):
        return _cast_struct(values, target_type)
    return values.cast(target_type)


def _cast_struct(values: pa.StructArray, target_type: pa.StructType) -> pa.StructArray:
    names = {target_type.field(index).name for index in range(target_type.num_fields)}
    dropped_fields = {values.type.field(index).name for index in range(values.type.num_fields)} - names
    if dropped_fields:
        raise pa.ArrowInvalid(f"a file has fields that the table does not have: {', '.join(sorted(dropped_fields))}")
    children = []
    for index in range(target_type.num_fields):
        child = target_type.field(index)
        at = values.type.get_field_index(child.name)
        array = pa.nulls(len(values), child.type) if at < 0 else cast_values(pc.struct_field(values, [at]), child.type)
        children.append(array if child.nullable else _without_nulls(array, values, child))
    fields = [target_type.field(index) for index in range(target_type.num_fields)]
    return pa.StructArray.from_arrays(children, fields=fields, mask=values.is_null())


def _without_nulls(array: pa.Array, parents: pa.StructArray, child: pa.Field) -> pa.Array:
    """Returns a child that cannot be null, with an empty value where its parent is null, as Parquet requires."""
    if pc.any(pc.and_(array.is_null(), parents.is_valid())).as_py():
        raise pa.ArrowInvalid(f"{child.name} is null")
    return pc.fill_null(array, pa.scalar(b"", child.type)) if array.null_count else array
