"""Converts event values to Arrow columns and reports each value that does not match its declared type.

A column is first cast as a unit (`vectorized_casts`). Only if that fails, its values are converted in ever smaller
blocks and finally one by one, so that valid data costs little next to invalid values.
"""

from __future__ import annotations

import decimal
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from deltaworks.events.conversion_errors import ConversionError, describe_value, format_value, type_mismatch
from deltaworks.events.lossless_numbers import FIRST_INEXACT_DOUBLE
from deltaworks.events.reasons import ReasonCode
from deltaworks.events.times import time_reader
from deltaworks.events.vectorized_casts import MAX_DOUBLE_DIGITS, NotVectorizable, cast_column
from deltaworks.specs.times import ISO_8601, TimeFormat
from deltaworks.specs.types import Array, ColumnType, Decimal, Primitive, Struct
from deltaworks.tables.arrow_types import arrow_type

#: Block sizes that are tried in turn after a failed cast. In a failing block of the smallest size, values are converted
#: one by one.
_BLOCK_SIZES = (256, 16)
_INTEGER_BITS = {"int": 31, "long": 63}

ConversionErrors = dict[int, ConversionError]
Converter = Callable[[Any], Any]


def convert_column(
    values: Sequence[Any], kind: ColumnType, *, times: TimeFormat = ISO_8601, types_checked: bool = False
) -> tuple[pa.Array, ConversionErrors]:
    """Converts values to one Arrow array. Returns it with the errors by index; failed values are null.

    Args:
        types_checked: the values' types were checked on every nesting level.
    """
    try:
        return _convert_at_once(values, kind, times, typed=types_checked), {}
    except (pa.ArrowException, ConversionError, TypeError, ValueError, OverflowError):
        for size in _BLOCK_SIZES:
            if len(values) > size:
                return _convert_in_blocks(values, kind, times, size)
        return _convert_one_by_one(values, arrow_type(kind), _converter(kind, times))


def _convert_in_blocks(
    values: Sequence[Any], kind: ColumnType, times: TimeFormat, size: int
) -> tuple[pa.Array, ConversionErrors]:
    """Converts block by block, so that one bad value among thousands slows down its block only."""
    arrays: list[pa.Array] = []
    errors: ConversionErrors = {}
    for start in range(0, len(values), size):
        array, block_errors = convert_column(values[start : start + size], kind, times=times)
        arrays.append(array)
        errors.update((start + index, error) for index, error in block_errors.items())
    return pa.concat_arrays(arrays), errors


def _convert_at_once(values: Sequence[Any], kind: ColumnType, times: TimeFormat, *, typed: bool) -> pa.Array:
    """Casts all values with Arrow if the cast is exact; otherwise converts them one by one."""
    try:
        return cast_column(values, kind, times, types_checked=typed)
    except NotVectorizable:
        converter = _converter(kind, times)
        return pa.array([None if value is None else converter(value) for value in values], arrow_type(kind))


def _convert_one_by_one(
    values: Sequence[Any], target: pa.DataType, converter: Converter
) -> tuple[pa.Array, ConversionErrors]:
    converted: list[Any] = []
    errors: ConversionErrors = {}
    for index, value in enumerate(values):
        try:
            result = None if value is None else converter(value)
            pa.scalar(result, target)
        except ConversionError as error:
            errors[index] = error
            result = None
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            errors[index] = ConversionError(
                ReasonCode.TYPE_MISMATCH, f"{describe_value(value)} is not a {target}: {error}"
            )
            result = None
        converted.append(result)
    return pa.array(converted, target), errors


def _converter(kind: ColumnType, times: TimeFormat) -> Converter:
    """Returns a function that converts a value to Arrow's input for type `kind`, or raises `ConversionError`."""
    if isinstance(kind, Primitive):
        return _primitive_converters(times)[kind.name]
    if isinstance(kind, Decimal):
        return lambda value: _to_decimal(value, kind)
    if isinstance(kind, Struct):
        by_name = {name: _converter(field, times) for name, field in kind.fields}
        return lambda value: _to_struct(value, by_name, kind)
    if isinstance(kind, Array):
        element = _converter(kind.element, times)
        return lambda value: _to_array(value, element, kind)
    value_converter = _converter(kind.value, times)
    return lambda value: _to_map(value, value_converter, kind)


def _primitive_converters(times: TimeFormat) -> dict[str, Converter]:
    reader = time_reader(times)
    return {
        "string": _to_text,
        "boolean": _to_boolean,
        "int": lambda value: _to_integer(value, _INTEGER_BITS["int"]),
        "long": lambda value: _to_integer(value, _INTEGER_BITS["long"]),
        "float": lambda value: _to_number(value, "<f"),
        "double": lambda value: _to_number(value, "<d"),
        "timestamp": reader.instant_us,
        "date": reader.date,
        "binary": lambda value: _to_text(value).encode(),
    }


def _to_text(value: Any) -> str:
    if not isinstance(value, str):
        raise type_mismatch(value, "string")
    return value


def _to_boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise type_mismatch(value, "boolean")
    return value


def _to_integer(value: Any, bits: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise type_mismatch(value, "whole number")
    if not -(1 << bits) <= value < 1 << bits:
        raise ConversionError(ReasonCode.OUT_OF_RANGE, f"{format_value(value)} needs more than {bits + 1} bits")
    if isinstance(value, float) and abs(value) >= FIRST_INEXACT_DOUBLE:
        raise ConversionError(
            ReasonCode.OUT_OF_RANGE, f"{format_value(value)} may have lost digits as a number with a fraction"
        )
    return int(value)


def _to_number(value: Any, width: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise type_mismatch(value, "number")
    try:
        number = float(value)
        struct.pack(width, number)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        # Infinity is not valid JSON, and would become a minimum or maximum in file statistics.
        raise ConversionError(ReasonCode.OUT_OF_RANGE, f"{format_value(value)} is too large a number")
    return number


def _to_decimal(value: Any, kind: Decimal) -> decimal.Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise type_mismatch(value, kind)
    if isinstance(value, float) and not _has_exact_digits(value):
        raise ConversionError(
            ReasonCode.OUT_OF_RANGE, f"{format_value(value)} may have lost digits as a number: send it as a text"
        )
    try:
        # repr returns the shortest digits that parse to the same double: 4.99 stays 4.99.
        number = decimal.Decimal(value if isinstance(value, str) else repr(value))
        scaled = number.quantize(decimal.Decimal(1).scaleb(-kind.scale), context=decimal.Context(prec=60))
    except decimal.InvalidOperation:
        raise type_mismatch(value, kind) from None
    if scaled != number or len(scaled.as_tuple().digits) > kind.precision:
        raise ConversionError(ReasonCode.OUT_OF_RANGE, f"{format_value(value)} does not fit {kind}")
    return scaled


def _has_exact_digits(value: float) -> bool:
    """Returns whether the double determines the digits that were sent. Integers beyond 64 bits are parsed as doubles
    too.
    """
    digits = decimal.Decimal(repr(value)).normalize().as_tuple().digits
    return abs(value) < 2.0**63 and len(digits) <= MAX_DOUBLE_DIGITS


def _to_array(value: Any, inner: Converter, kind: ColumnType) -> list[Any]:
    if not isinstance(value, list):
        raise type_mismatch(value, kind)
    try:
        return [None if item is None else inner(item) for item in value]
    except ConversionError as error:
        raise error.nested_in("[]") from None


def _to_map(value: Any, inner: Converter, kind: ColumnType) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise type_mismatch(value, kind)
    try:
        return [(key, None if item is None else inner(item)) for key, item in value.items()]
    except ConversionError as error:
        # A map key is event data, not a field name.
        raise error.nested_in("[]") from None


def _to_struct(value: Any, inner_by_name: dict[str, Converter], kind: ColumnType) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise type_mismatch(value, kind)
    converted = {}
    for name, inner in inner_by_name.items():
        item = value.get(name)
        try:
            converted[name] = None if item is None else inner(item)
        except ConversionError as error:
            raise error.nested_in(f".{name}") from None
    return converted
