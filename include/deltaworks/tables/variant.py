"""Encodes JSON as variants, the binary JSON of Delta and Parquet, and describes their columns to Delta and DuckDB.

A variant has two parts: `metadata` with the names of all fields, and `value` with the ids of names. Numbers keep all
digits: integers have up to 38; fractions are doubles if these have the same digits, or else decimals of up to 38;
longer numbers are texts.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from deltalake import Field, Schema
from deltalake.schema import VariantType

from deltaworks.tables.arrow_types import VARIANT_TYPE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Marks a column of variants in Arrow data.
_EXTENSION: Final = {b"ARROW:extension:name": b"arrow.parquet.variant", b"ARROW:extension:metadata": b""}
_MAX_DIGITS: Final = 38
_PRIMITIVE, _SHORT_STRING, _OBJECT, _ARRAY = range(4)
_NULL, _TRUE, _FALSE, _DOUBLE, _STRING = 0, 1, 2, 7, 16
#: Type and format of integers, by size.
_INTEGERS: Final = ((3, 1), (4, 2), (5, 4), (6, 8))
#: Type of decimals, with their number of digits and bytes.
_DECIMALS: Final = ((8, 9, 4), (9, 18, 8), (10, _MAX_DIGITS, 16))
_MAX_SHORT_STRING: Final = 63
#: Values that an object or array can have with a number of one byte.
_MAX_SMALL_COUNT: Final = 255
_VERSION, _SORTED = 1, 1 << 4
#: Bytes of values by type, after the type; binary and string have a length of four bytes before their bytes.
_SIZES: Final = {
    **{_NULL: 0, _TRUE: 0, _FALSE: 0, 3: 1, 4: 2, 5: 4, 6: 8, _DOUBLE: 8, 8: 5, 9: 9, 10: 17},
    **{11: 4, 12: 8, 13: 8, 14: 4, 17: 8, 18: 8, 19: 8, 20: 16},
}


def delta_schema(schema: pa.Schema | Schema) -> Schema:
    """Returns the schema of a Delta table with these columns."""
    if isinstance(schema, Schema):
        return schema
    return Schema(
        [
            Field(field.name, VariantType(), nullable=field.nullable) if column.type == VARIANT_TYPE else field
            for column, field in zip(schema, Schema.from_arrow(schema).fields, strict=True)
        ]
    )


def variant_columns(table: Schema) -> frozenset[str]:
    """Returns the names of the columns of variants of a Delta table."""
    return frozenset(field.name for field in table.fields if isinstance(field.type, VariantType))


def with_marked_variants(schema: pa.Schema, table: Schema) -> pa.Schema:
    """Returns the Arrow schema of a Delta table with its variants marked, so that SQL reads their fields."""
    names = variant_columns(table)
    fields = [field.with_metadata(_EXTENSION) if field.name in names else field for field in schema]
    return pa.schema(fields, schema.metadata) if names else schema


def read_with_variants(spark: SparkSession, files: Sequence[str], variants: Collection[str]) -> DataFrame:
    """Reads Parquet files; Spark takes the two parts of a variant for a struct unless it is told otherwise.

    Args:
        files: their addresses.
        variants: names of the columns of variants.
    """
    from pyspark.sql import types

    rows = spark.read.parquet(*files)
    if not {*variants} & {*rows.columns}:
        return rows
    columns = [
        types.StructField(field.name, types.VariantType()) if field.name in variants else field for field in rows.schema
    ]
    return spark.read.schema(types.StructType(columns)).parquet(*files)


def variant_array(variants: Sequence[Mapping[str, bytes] | None]) -> pa.StructArray:
    """Returns variants as a column."""
    parts = [
        pa.array([b"" if variant is None else variant[field.name] for variant in variants], field.type)
        for field in VARIANT_TYPE
    ]
    is_null = pa.array([variant is None for variant in variants], pa.bool_())
    return pa.StructArray.from_arrays(parts, fields=list(VARIANT_TYPE), mask=is_null)


def encode_json(text: str) -> dict[str, bytes]:
    """Returns a JSON text as a variant.

    Raises:
        RecursionError: it is nested too deeply.
    """
    return _encode(json.loads(text, parse_int=_parse_integer, parse_float=_parse_fraction, parse_constant=str))


def _parse_integer(literal: str) -> int | str:
    return int(literal) if len(literal.lstrip("-")) <= _MAX_DIGITS else literal


def _parse_fraction(literal: str) -> float | Decimal | str:
    """Returns the number as a double if that has the same digits, otherwise as a decimal, or else as text."""
    double = float(literal)
    if repr(double) == literal:
        return double
    try:
        number = Decimal(literal)
        if Decimal(repr(double)) == number:
            return double
    except InvalidOperation:  # an exponent out of range
        return literal
    _, digits, exponent = number.as_tuple()
    has_decimal = max(len(digits) + int(exponent), len(digits), -int(exponent)) <= _MAX_DIGITS
    return number if has_decimal else literal


def replace_texts(variant: Mapping[str, bytes], replace: Callable[[str], str]) -> dict[str, bytes]:
    """Returns the variant with each text, and each name of a field, replaced."""

    def replaced(node: Any) -> Any:
        if isinstance(node, dict):
            return {replace(name): replaced(inner) for name, inner in node.items()}
        if isinstance(node, list):
            return [replaced(inner) for inner in node]
        text = _text_of(node)
        return node if text is None else replace(text)

    return _encode(replaced(_decode(_names(variant["metadata"]), variant["value"])))


def _encode(value: Any) -> dict[str, bytes]:
    names: set[str] = set()
    _add_field_names(value, names)
    metadata, ids = _dictionary(frozenset(names))
    return {"metadata": metadata, "value": _value(value, ids)}


def _add_field_names(value: Any, names: set[str]) -> None:
    if isinstance(value, dict):
        names.update(value)
        for inner in value.values():
            _add_field_names(inner, names)
    elif isinstance(value, list):
        for inner in value:
            _add_field_names(inner, names)


@lru_cache(maxsize=256)
def _dictionary(names: frozenset[str]) -> tuple[bytes, Mapping[str, int]]:
    """Returns the metadata with these names, and their ids. Cached, because most events of a type have the same."""
    encoded = sorted((name.encode("utf-8", "surrogateescape"), name) for name in names)
    texts = [text for text, _ in encoded]
    width = _width(max(sum(map(len, texts)), len(texts)))
    head = bytes([_VERSION | _SORTED | (width - 1) << 6]) + len(texts).to_bytes(width, "little")
    metadata = b"".join((head, _packed(itertools.accumulate(map(len, texts), initial=0), width), *texts))
    return metadata, {name: number for number, (_, name) in enumerate(encoded)}


def _value(value: Any, ids: Mapping[str, int]) -> bytes:
    """Encodes a value; bytes are encoded already."""
    if isinstance(value, list):
        return _array([_value(inner, ids) for inner in value])
    if isinstance(value, dict):
        fields = sorted((ids[name], name) for name in value)
        return _object([number for number, _ in fields], [_value(value[name], ids) for _, name in fields])
    encoded: bytes = _ENCODERS[type(value)](value)
    return encoded


def _header(basic_type: int, header: int) -> bytes:
    return bytes([header << 2 | basic_type])


def _string(text: bytes) -> bytes:
    if len(text) <= _MAX_SHORT_STRING:
        return _header(_SHORT_STRING, len(text)) + text
    return _header(_PRIMITIVE, _STRING) + len(text).to_bytes(4, "little") + text


def _integer(value: int) -> bytes:
    for kind, size in _INTEGERS:
        if -(1 << (8 * size - 1)) <= value < 1 << (8 * size - 1):
            return _header(_PRIMITIVE, kind) + value.to_bytes(size, "little", signed=True)
    return _decimal(Decimal(value))


def _decimal(value: Decimal) -> bytes:
    exponent = int(value.as_tuple().exponent)
    scale = max(0, -exponent)
    unscaled = int("".join(map(str, value.as_tuple().digits))) * 10 ** max(0, exponent)
    digits = max(len(str(unscaled)), scale)
    kind, size = next((kind, size) for kind, max_digits, size in _DECIMALS if digits <= max_digits)
    signed = -unscaled if value.is_signed() else unscaled
    parts = (_header(_PRIMITIVE, kind), bytes([scale]), signed.to_bytes(size, "little", signed=True))
    return b"".join(parts)


_ENCODERS: Final[Mapping[type, Callable[[Any], bytes]]] = {
    bytes: bytes,
    type(None): lambda _: _header(_PRIMITIVE, _NULL),
    bool: lambda value: _header(_PRIMITIVE, _TRUE if value else _FALSE),
    str: lambda value: _string(value.encode("utf-8", "surrogateescape")),
    int: _integer,
    float: lambda value: _header(_PRIMITIVE, _DOUBLE) + struct.pack("<d", value),
    Decimal: _decimal,
}


def _array(values: Sequence[bytes]) -> bytes:
    count, offsets, width = _layout(values)
    is_large = len(values) > _MAX_SMALL_COUNT
    return b"".join((_header(_ARRAY, is_large << 2 | width - 1), count, offsets, *values))


def _object(ids: Sequence[int], values: Sequence[bytes]) -> bytes:
    """Encodes an object from the ids of its names, in the order of the names, and its values."""
    count, offsets, width = _layout(values)
    is_large, id_width = len(values) > _MAX_SMALL_COUNT, _width(max(ids, default=0))
    header = _header(_OBJECT, is_large << 4 | (id_width - 1) << 2 | width - 1)
    return b"".join((header, count, _packed(ids, id_width), offsets, *values))


def _layout(values: Sequence[bytes]) -> tuple[bytes, bytes, int]:
    """Returns the encoded number of values, their encoded offsets, and the bytes of an offset."""
    width = _width(sum(map(len, values)))
    count = len(values).to_bytes(4 if len(values) > _MAX_SMALL_COUNT else 1, "little")
    return count, _packed(itertools.accumulate(map(len, values), initial=0), width), width


def _width(largest: int) -> int:
    return max(1, (largest.bit_length() + 7) // 8)


def _packed(numbers: Iterable[int], width: int) -> bytes:
    if width == 1:
        return bytes(numbers)
    return b"".join(number.to_bytes(width, "little") for number in numbers)


def _names(metadata: bytes) -> list[str]:
    """Returns the names of fields by id."""
    width = (metadata[0] >> 6) + 1
    count = int.from_bytes(metadata[1 : 1 + width], "little")
    offsets, start = _unpacked(metadata, 1 + width, count + 1, width)
    return [
        metadata[start + low : start + high].decode("utf-8", "surrogateescape")
        for low, high in itertools.pairwise(offsets)
    ]


def _unpacked(data: bytes, start: int, count: int, width: int) -> tuple[list[int], int]:
    """Returns numbers, and the position after them."""
    end = start + count * width
    return [int.from_bytes(data[at : at + width], "little") for at in range(start, end, width)], end


def _decode(names: Sequence[str], data: bytes, start: int = 0) -> Any:
    """Returns objects and lists of encoded values."""
    basic_type, header = data[start] & 3, data[start] >> 2
    if basic_type not in (_OBJECT, _ARRAY):
        return data[start : start + 1 + _size(data, start)]
    is_large = header >> 4 if basic_type == _OBJECT else header >> 2
    count_width = 4 if is_large & 1 else 1
    count, at = int.from_bytes(data[start + 1 : start + 1 + count_width], "little"), start + 1 + count_width
    ids: list[int] = []
    if basic_type == _OBJECT:
        ids, at = _unpacked(data, at, count, (header >> 2 & 3) + 1)
    offsets, at = _unpacked(data, at, count + 1, (header & 3) + 1)
    values = [_decode(names, data, at + offset) for offset in offsets[:count]]
    return dict(zip(map(names.__getitem__, ids), values, strict=True)) if basic_type == _OBJECT else values


def _size(data: bytes, start: int) -> int:
    """Returns the number of bytes after the first one of a value that is neither an object nor an array."""
    basic_type, header = data[start] & 3, data[start] >> 2
    if basic_type == _SHORT_STRING:
        return header
    if header in _SIZES:
        return _SIZES[header]
    return 4 + int.from_bytes(data[start + 1 : start + 5], "little")


def _text_of(value: bytes) -> str | None:
    """Returns the text that is encoded; None for other types."""
    basic_type, header = value[0] & 3, value[0] >> 2
    if basic_type == _SHORT_STRING:
        return value[1:].decode("utf-8", "surrogateescape")
    is_long = basic_type == _PRIMITIVE and header == _STRING
    return value[5:].decode("utf-8", "surrogateescape") if is_long else None
