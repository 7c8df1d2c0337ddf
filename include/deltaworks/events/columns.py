"""Converts event values to Arrow columns and reports each value that does not match its declared type.

A column is first cast as a unit with Arrow, if the result equals that of converting value by value. Such a cast
converts either all values or none. Arrow itself rejects other types for texts and booleans; for numbers it would round
or parse, so the values' types are checked first. Only if the cast fails, values are converted in ever smaller blocks
and finally one by one, so that valid data costs little next to invalid values.
"""

from __future__ import annotations

import decimal
import math
import struct
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from deltaworks.events.lossless_numbers import FIRST_INEXACT_DOUBLE, NUMBER
from deltaworks.events.reasons import ConversionError, ReasonCode, describe_value, format_value, type_mismatch
from deltaworks.events.times import time_reader
from deltaworks.specs.times import ISO_8601, TimeFormat
from deltaworks.specs.types import Array, ColumnType, Decimal, Map, Primitive, Struct
from deltaworks.tables.arrow_types import arrow_type

# Casts of complete columns.

#: Maximum number of significant digits for which a double determines the decimal.
MAX_DOUBLE_DIGITS = 15
#: Exponent of the largest power of ten that is exact as a double.
_MAX_EXACT_SCALE = 22
_NONE_TYPE = type(None)
_INTEGER_TYPES, _NUMBER_TYPES = frozenset({int, _NONE_TYPE}), frozenset({int, float, _NONE_TYPE})
#: Python types that Arrow converts without rounding, parsing or guessing.
_EXACT_TYPES = {"int": _INTEGER_TYPES, "long": _INTEGER_TYPES, "float": _NUMBER_TYPES, "double": _NUMBER_TYPES}
_UNCONVERTED_TYPES = {"string": str, "boolean": bool}
_TIMESTAMP, _DATE = Primitive("timestamp"), Primitive("date")
Doubles = npt.NDArray[np.float64]


class NotVectorizable(Exception):
    """Raised if no cast is exact for these values."""


def cast_column(values: Sequence[Any], kind: ColumnType, times: TimeFormat, *, types_checked: bool = False) -> pa.Array:
    """Casts all values to one array; None becomes null.

    Args:
        types_checked: the values' types were checked on every nesting level.

    Raises:
        NotVectorizable: no cast applies.
        pa.ArrowException, TypeError, ValueError, OverflowError: a value does not fit, or may not fit.
    """
    if isinstance(kind, Primitive):
        return _cast_primitive(values, kind, times)
    if isinstance(kind, Decimal):
        if not _NUMBER_TYPES.issuperset(map(type, values)):
            raise NotVectorizable
        return exact_decimals(pa.array(values, pa.float64()), kind)
    if has_nested_map(kind) or not (types_checked or _has_exact_types(values, kind)):
        raise NotVectorizable
    if isinstance(kind, Map):
        values = [None if value is None else list(value.items()) for value in values]
    return _require_finite(pa.array(values, arrow_type(kind)))


def _cast_primitive(values: Sequence[Any], kind: Primitive, times: TimeFormat) -> pa.Array:
    if kind.name in _UNCONVERTED_TYPES:
        return pa.array(values, arrow_type(kind))
    if kind.name in _EXACT_TYPES:
        if not _EXACT_TYPES[kind.name].issuperset(map(type, values)):
            raise NotVectorizable
        return _require_finite(pa.array(values, arrow_type(kind)))
    if kind == _TIMESTAMP and (times.unit == "iso8601" or _INTEGER_TYPES.issuperset(map(type, values))):
        return time_reader(times).instants(values)
    if kind == _DATE and {str, _NONE_TYPE}.issuperset(map(type, values)):
        return time_reader(times).dates(values) if times.format is not None else _cast_dates(values, times)
    raise NotVectorizable


def _cast_dates(texts: Sequence[Any], times: TimeFormat) -> pa.Array:
    """Parses date texts without a declared pattern; each distinct text once."""
    encoded = pa.array(texts, pa.string()).dictionary_encode()
    read = time_reader(times).date
    return pa.array([read(text) for text in encoded.dictionary.to_pylist()], pa.date32()).take(encoded.indices)


def exact_decimals(doubles: pa.Array, kind: Decimal) -> pa.Array:
    """Casts doubles to decimals; fails unless each double determines a decimal of up to 15 digits.

    The decimal is checked by dividing two exact integers: the quotient is the double closest to the decimal, which is
    also what parsing its digits returns.

    Raises:
        ValueError: a double does not determine its decimal.
    """
    power = 10.0**kind.scale
    doubled = doubles_of(doubles, null=0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.rint(doubled * power)
        fits = np.abs(scaled) < 10.0 ** min(kind.precision, MAX_DOUBLE_DIGITS)
        if kind.scale > _MAX_EXACT_SCALE or not (fits & (scaled / power == doubled)).all():
            raise ValueError("a number has more digits than the column or a double can hold")
    low = scaled.astype(np.int64)
    # Arrow decimals are 128-bit integers; the upper half repeats the sign.
    data = pa.py_buffer(np.stack([low, low >> 63], axis=1))
    valid = pa.array(doubles.is_valid()).buffers()[1] if doubles.null_count else None
    return pa.Array.from_buffers(arrow_type(kind), len(low), [valid, data], doubles.null_count)


def doubles_of(numbers: pa.Array, *, null: float) -> Doubles:
    """Converts numbers to a numpy array; nulls become `null`."""
    filled = numbers.fill_null(null) if numbers.null_count else numbers
    doubles: Doubles = filled.to_numpy(zero_copy_only=False)
    return doubles


def _has_exact_types(values: Sequence[Any], kind: ColumnType) -> bool:
    """Returns whether all values, on every nesting level, have the Python type that Arrow converts to `kind`
    exactly."""
    types = set(map(type, values)) - {_NONE_TYPE}
    match kind:
        case Primitive(name) if name in _UNCONVERTED_TYPES:
            return types <= {_UNCONVERTED_TYPES[name]}
        case Primitive(name):
            return types <= _EXACT_TYPES.get(name, frozenset())
        case Array(element):
            return types <= {list} and _has_exact_types(list(chain.from_iterable(filter(None, values))), element)
        case Map(value):
            return types <= {dict} and _has_exact_types(
                [item for held in values if held for item in held.values()], value
            )
        case Struct(fields):
            return types <= {dict} and all(
                _has_exact_types([held.get(name) for held in values if held is not None], field)
                for name, field in fields
            )
    return False


def has_nested_map(kind: ColumnType, *, top: bool = True) -> bool:
    """Returns whether the type contains a map below the top level. Arrow builds maps from pairs, but events have
    objects.
    """
    match kind:
        case Map(value):
            return not top or has_nested_map(value, top=False)
        case Array(element):
            return has_nested_map(element, top=False)
        case Struct(fields):
            return any(has_nested_map(field, top=False) for _, field in fields)
    return False


def _require_finite(array: pa.Array) -> pa.Array:
    if not _is_finite(array):
        raise ValueError("a number is too large for the column")
    return array


def _is_finite(array: pa.Array) -> bool:
    """Returns whether all numbers in the array, on every nesting level, are finite."""
    kind = array.type
    if pa.types.is_floating(kind):
        return bool(np.isfinite(doubles_of(array, null=0.0)).all())
    if pa.types.is_map(kind):
        return _is_finite(array.items)
    if pa.types.is_list(kind):
        return _is_finite(array.values)
    if pa.types.is_struct(kind):
        return all(_is_finite(array.field(index)) for index in range(kind.num_fields))
    return True


# Conversion in blocks and one by one.

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
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (isinstance(value, float) and not value.is_integer()):
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
    if isinstance(value, float) and math.isnan(value):
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
    if not NUMBER.fullmatch(value.strip() if isinstance(value, str) else repr(value)):
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
