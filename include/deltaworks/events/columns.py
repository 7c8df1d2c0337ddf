"""Turns the values found in events into Arrow columns, naming every value that does not fit its declared type.

Whole columns are converted at once (`whole_columns`). Only where that fails are values looked at one by one, block by
block, so that good data pays next to nothing for the bad.
"""

from __future__ import annotations

import decimal
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from deltaworks.events.exact_numbers import FIRST_ROUNDED
from deltaworks.events.misfits import Misfit, described, mismatch, shown
from deltaworks.events.reasons import ReasonCode
from deltaworks.events.times import times_of
from deltaworks.events.whole_columns import DIGITS_OF_A_DOUBLE, Unsure, whole_column
from deltaworks.specs.times import ISO_8601, TimeForm
from deltaworks.specs.types import Array, ColumnType, Decimal, Primitive, Struct
from deltaworks.tables.arrow_types import arrow_type

#: Where a value does not fit, so many around it are tried by themselves, then so many; those are looked at singly.
_BLOCKS = (256, 16)
_INTEGER_BITS = {"int": 31, "long": 63}

Misfits = dict[int, Misfit]
Converter = Callable[[Any], Any]


def column(
    values: Sequence[Any], kind: ColumnType, *, times: TimeForm = ISO_8601, typed: bool = False
) -> tuple[pa.Array, Misfits]:
    """The values as one Arrow array, and the misfits by index (null in the array).

    Args:
        typed: whether nested values are known to be of `kind` on every level already.
    """
    try:
        return _at_once(values, kind, times, typed=typed), {}
    except (pa.ArrowException, Misfit, TypeError, ValueError, OverflowError):
        for size in _BLOCKS:
            if len(values) > size:
                return _in_blocks(values, kind, times, size)
        return _one_by_one(values, arrow_type(kind), _converter(kind, times))


def _in_blocks(values: Sequence[Any], kind: ColumnType, times: TimeForm, size: int) -> tuple[pa.Array, Misfits]:
    """One bad value among thousands costs its block, not all of them."""
    arrays: list[pa.Array] = []
    misfits: Misfits = {}
    for start in range(0, len(values), size):
        array, block_misfits = column(values[start : start + size], kind, times=times)
        arrays.append(array)
        misfits.update((start + index, misfit) for index, misfit in block_misfits.items())
    return pa.concat_arrays(arrays), misfits


def _at_once(values: Sequence[Any], kind: ColumnType, times: TimeForm, *, typed: bool) -> pa.Array:
    """The whole column by Arrow's own conversion where that is exact, value by value otherwise."""
    try:
        return whole_column(values, kind, times, typed=typed)
    except Unsure:
        converter = _converter(kind, times)
        return pa.array([None if value is None else converter(value) for value in values], arrow_type(kind))


def _one_by_one(values: Sequence[Any], target: pa.DataType, converter: Converter) -> tuple[pa.Array, Misfits]:
    converted: list[Any] = []
    misfits: Misfits = {}
    for index, value in enumerate(values):
        try:
            good = None if value is None else converter(value)
            pa.scalar(good, target)
        except Misfit as misfit:
            misfits[index] = misfit
            good = None
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            misfits[index] = Misfit(ReasonCode.TYPE_MISMATCH, f"{described(value)} is no {target}: {error}")
            good = None
        converted.append(good)
    return pa.array(converted, target), misfits


def _converter(kind: ColumnType, times: TimeForm) -> Converter:
    """What turns one value into what Arrow takes for `kind`, or raises `Misfit`."""
    if isinstance(kind, Primitive):
        return _primitive_converters(times)[kind.name]
    if isinstance(kind, Decimal):
        return lambda value: _decimal(value, kind)
    if isinstance(kind, Struct):
        by_name = {name: _converter(field, times) for name, field in kind.fields}
        return lambda value: _struct(value, by_name, kind)
    if isinstance(kind, Array):
        element = _converter(kind.element, times)
        return lambda value: _array(value, element, kind)
    held = _converter(kind.value, times)
    return lambda value: _map(value, held, kind)


def _primitive_converters(times: TimeForm) -> dict[str, Converter]:
    reader = times_of(times)
    return {
        "string": _text,
        "boolean": _boolean,
        "int": lambda value: _integer(value, _INTEGER_BITS["int"]),
        "long": lambda value: _integer(value, _INTEGER_BITS["long"]),
        "float": lambda value: _number(value, "<f"),
        "double": lambda value: _number(value, "<d"),
        "timestamp": reader.instant_us,
        "date": reader.date,
        "binary": lambda value: _text(value).encode(),
    }


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise mismatch(value, "string")
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise mismatch(value, "boolean")
    return value


def _integer(value: Any, bits: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise mismatch(value, "whole number")
    if not -(1 << bits) <= value < 1 << bits:
        raise Misfit(ReasonCode.OUT_OF_RANGE, f"{shown(value)} needs more than {bits + 1} bits")
    if isinstance(value, float) and abs(value) >= FIRST_ROUNDED:
        raise Misfit(ReasonCode.OUT_OF_RANGE, f"{shown(value)} may have lost digits as a number with a fraction")
    return int(value)


def _number(value: Any, width: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise mismatch(value, "number")
    try:
        number = float(value)
        struct.pack(width, number)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        # An infinity would also be no JSON where it became a bound in a file's statistics.
        raise Misfit(ReasonCode.OUT_OF_RANGE, f"{shown(value)} is too large a number")
    return number


def _decimal(value: Any, kind: Decimal) -> decimal.Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise mismatch(value, kind)
    if isinstance(value, float) and not _tells_its_digits(value):
        raise Misfit(ReasonCode.OUT_OF_RANGE, f"{shown(value)} may have lost digits as a number: send it as a text")
    try:
        # repr gives the shortest digits that read back as the same double: 4.99 stays 4.99.
        number = decimal.Decimal(value if isinstance(value, str) else repr(value))
        scaled = number.quantize(decimal.Decimal(1).scaleb(-kind.scale), context=decimal.Context(prec=60))
    except decimal.InvalidOperation:
        raise mismatch(value, kind) from None
    if scaled != number or len(scaled.as_tuple().digits) > kind.precision:
        raise Misfit(ReasonCode.OUT_OF_RANGE, f"{shown(value)} does not fit {kind}")
    return scaled


def _tells_its_digits(value: float) -> bool:
    """Whether the digits that were sent can be told from the double; a whole number beyond 64 bits is one too."""
    digits = decimal.Decimal(repr(value)).normalize().as_tuple().digits
    return abs(value) < 2.0**63 and len(digits) <= DIGITS_OF_A_DOUBLE


def _array(value: Any, inner: Converter, kind: ColumnType) -> list[Any]:
    if not isinstance(value, list):
        raise mismatch(value, kind)
    try:
        return [None if item is None else inner(item) for item in value]
    except Misfit as misfit:
        raise misfit.below("[]") from None


def _map(value: Any, inner: Converter, kind: ColumnType) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise mismatch(value, kind)
    try:
        return [(key, None if item is None else inner(item)) for key, item in value.items()]
    except Misfit as misfit:
        # Its key is a value of the event like any other, and no name of a field.
        raise misfit.below("[]") from None


def _struct(value: Any, inner_by_name: dict[str, Converter], kind: ColumnType) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise mismatch(value, kind)
    converted = {}
    for name, inner in inner_by_name.items():
        item = value.get(name)
        try:
            converted[name] = None if item is None else inner(item)
        except Misfit as misfit:
            raise misfit.below(f".{name}") from None
    return converted
