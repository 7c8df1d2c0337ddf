"""Whole columns at once, by Arrow's own conversions, where these do to every value what `columns` does to one.

Either all values come out as they would one by one, or nothing does: then the values are looked at singly, which also
says what is wrong with them. So each way here refuses whatever it cannot vouch for.

What is not looked at is what Arrow itself refuses. It makes no text and no truth value of anything else, so that their
Python types need no look. To a number it would round or parse.
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

#: A decimal of this many digits is the only one of so few digits that reads as its double.
MAX_DOUBLE_DIGITS = 15
#: Ten to this power is the largest that is exact as a double.
_MAX_EXACT_SCALE = 22
_NONE_TYPE = type(None)
_INTEGER_TYPES, _NUMBER_TYPES = frozenset({int, _NONE_TYPE}), frozenset({int, float, _NONE_TYPE})
#: Python types of values that Arrow converts without rounding, parsing or guessing.
_EXACT_TYPES = {"int": _INTEGER_TYPES, "long": _INTEGER_TYPES, "float": _NUMBER_TYPES, "double": _NUMBER_TYPES}
_UNCONVERTED_TYPES = {"string": str, "boolean": bool}
_TIMESTAMP, _DATE = Primitive("timestamp"), Primitive("date")
Doubles = npt.NDArray[np.float64]


class NotVectorizable(Exception):
    """No way here is sure of these values."""


def cast_column(values: Sequence[Any], kind: ColumnType, times: TimeFormat, *, types_checked: bool = False) -> pa.Array:
    """All values as one array; null where a value is None.

    Args:
        typed: whether nested values are known to be of `kind` on every level already.

    Raises:
        Unsure: none of the ways here is for them.
        pa.ArrowException, TypeError, ValueError, OverflowError: some value does not fit, or may not.
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
    """Dates without a pattern, each distinct text read once."""
    encoded = pa.array(texts, pa.string()).dictionary_encode()
    read = time_reader(times).date
    return pa.array([read(text) for text in encoded.dictionary.to_pylist()], pa.date32()).take(encoded.indices)


def exact_decimals(doubles: pa.Array, kind: Decimal) -> pa.Array:
    """Doubles as decimals; refused unless each is the double of its decimal, and of no other of 15 digits.

    Both sides of the division are whole and exact, so that its result is the double next to the decimal, as a reader of
    the decimal's digits would have it.

    Raises:
        ValueError: of one of them that cannot be said.
    """
    power = 10.0**kind.scale
    doubled = doubles_of(doubles, null=0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.rint(doubled * power)
        fits = np.abs(scaled) < 10.0 ** min(kind.precision, MAX_DOUBLE_DIGITS)
        if kind.scale > _MAX_EXACT_SCALE or not (fits & (scaled / power == doubled)).all():
            raise ValueError("a number has more digits than the column, or than a double tells")
    low = scaled.astype(np.int64)
    # A decimal is a whole number of 128 bits: its upper half repeats the sign.
    data = pa.py_buffer(np.stack([low, low >> 63], axis=1))
    valid = pa.array(doubles.is_valid()).buffers()[1] if doubles.null_count else None
    return pa.Array.from_buffers(arrow_type(kind), len(low), [valid, data], doubles.null_count)


def doubles_of(numbers: pa.Array, *, null: float) -> Doubles:
    """Numbers for numpy, with `null` where there is none."""
    filled = numbers.fill_null(null) if numbers.null_count else numbers
    doubles: Doubles = filled.to_numpy(zero_copy_only=False)
    return doubles


def _has_exact_types(values: Sequence[Any], kind: ColumnType) -> bool:
    """Whether every value, on every level, has the Python type that Arrow takes for `kind` without guessing."""
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
    """Whether a map lies below: Arrow takes pairs for one, and events have objects."""
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
        raise ValueError("a number too large for the column")
    return array


def _is_finite(array: pa.Array) -> bool:
    """Whether no number in it is infinite, on any level."""
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
