"""Casts complete columns with Arrow, if the result equals that of converting value by value (`columns`).

A cast converts either all values or none: if any value cannot be converted exactly, it raises. The caller then converts
the values one by one, which also reports errors.

Arrow itself rejects other types for texts and booleans. For numbers it would round or parse, so the values' types are
checked first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from deltaworks.events.times import time_reader
from deltaworks.specs.times import TimeFormat
from deltaworks.specs.types import Array, ColumnType, Decimal, Map, Primitive, Struct
from deltaworks.tables.arrow_types import arrow_type

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
