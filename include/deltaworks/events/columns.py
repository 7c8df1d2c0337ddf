"""Turns the values found in events into Arrow columns, naming every value that does not fit its declared type.

Whole columns are converted at once. Only where that fails are values looked at one by one, block by block, so that good
data pays next to nothing for the bad.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import reprlib
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from deltaworks.events.exact_numbers import FIRST_ROUNDED
from deltaworks.events.reasons import ReasonCode
from deltaworks.specs.table import TimeUnit
from deltaworks.specs.types import Array, ColumnType, Decimal, Primitive, Struct
from deltaworks.tables.arrow_types import arrow_type

#: Spark and Delta dates end with year 9999; anything before 1900 is a clock that was never set.
EARLIEST = dt.datetime(1900, 1, 1, tzinfo=dt.UTC)
LATEST = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_EARLIEST_US = (EARLIEST - _EPOCH) // _MICROSECOND
_LATEST_US = (LATEST - _EPOCH) // _MICROSECOND
_PER_UNIT_US = {"epoch_seconds": 1_000_000, "epoch_millis": 1_000}
#: Python types Arrow converts to a column type without rounding, parsing or guessing.
_EXACT_TYPES = {
    "string": frozenset({str}),
    "boolean": frozenset({bool}),
    "int": frozenset({int}),
    "long": frozenset({int}),
    "float": frozenset({int, float}),
    "double": frozenset({int, float}),
}
_SHOWN_CHARACTERS = 80
#: How many values are looked at one by one for one that does not fit.
_BLOCK = 256
_INTEGER_BITS = {"int": 31, "long": 63}
#: A decimal of this many digits is the only one of so few digits that reads as its double.
_DIGITS_OF_A_DOUBLE = 15


class Misfit(Exception):
    """A value that does not fit; `code` says how, `path` which field or budget it is about, where that is said."""

    def __init__(self, code: ReasonCode, detail: str, *, path: str = "") -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.path = path


Misfits = dict[int, Misfit]
Converter = Callable[[Any], Any]


def column(values: Sequence[Any], kind: ColumnType, *, unit: TimeUnit = "iso8601") -> tuple[pa.Array, Misfits]:
    """The values as one Arrow array, and the misfits by index (null in the array)."""
    target = arrow_type(kind)
    converter = _converter(kind, unit)
    try:
        return _at_once(values, kind, target, unit, converter), {}
    except (pa.ArrowException, Misfit, TypeError, ValueError, OverflowError):
        return _in_blocks(values, kind, unit) if len(values) > _BLOCK else _one_by_one(values, target, converter)


def _in_blocks(values: Sequence[Any], kind: ColumnType, unit: TimeUnit) -> tuple[pa.Array, Misfits]:
    """One bad value among thousands costs its block, not all of them."""
    arrays: list[pa.Array] = []
    misfits: Misfits = {}
    for start in range(0, len(values), _BLOCK):
        array, block_misfits = column(values[start : start + _BLOCK], kind, unit=unit)
        arrays.append(array)
        misfits.update((start + index, misfit) for index, misfit in block_misfits.items())
    return pa.concat_arrays(arrays), misfits


def _at_once(
    values: Sequence[Any], kind: ColumnType, target: pa.DataType, unit: TimeUnit, converter: Converter
) -> pa.Array:
    """The whole column by Arrow's own conversion where that is exact, value by value otherwise."""
    types = set(map(type, values)) - {type(None)}
    if isinstance(kind, Primitive) and types <= _EXACT_TYPES.get(kind.name, frozenset()):
        return _finite(pa.array(values, target))
    if isinstance(kind, Decimal) and types <= {int, float}:
        return _decimals(values, kind, target)
    if isinstance(kind, Primitive) and kind.name == "timestamp":
        if unit == "iso8601":
            return _bounded(pc.cast(pa.array(values, pa.string()), target))
        if types <= {int}:
            scaled = pc.multiply_checked(pa.array(values, pa.int64()), _PER_UNIT_US[unit])
            return _bounded(scaled.cast(target))
    return pa.array([None if value is None else converter(value) for value in values], target)


def _finite(numbers: pa.Array) -> pa.Array:
    if pa.types.is_floating(numbers.type) and not pc.all(pc.is_finite(numbers), min_count=0).as_py():
        raise ValueError("a number too large for the column")
    return numbers


def _decimals(values: Sequence[Any], kind: Decimal, target: pa.DataType) -> pa.Array:
    """Doubles as decimals; refused unless each reads back as the very same double, and no other decimal does."""
    doubles = pa.array(values, pa.float64())
    largest = pc.max(pc.abs(doubles)).as_py()
    if largest is not None and largest >= 10.0 ** (_DIGITS_OF_A_DOUBLE - kind.scale):
        raise ValueError("a double does not tell so many digits")
    decimals = pc.cast(doubles, target)
    if not pc.all(pc.equal(pc.cast(decimals, pa.float64()), doubles), min_count=0).as_py():
        raise ValueError("a number has more digits than the column")
    return decimals


def _bounded(instants: pa.Array) -> pa.Array:
    bounds = pc.min_max(instants)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is not None and (low < EARLIEST or high > LATEST):
        raise ValueError("an instant out of range")
    return instants


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
            misfits[index] = Misfit(ReasonCode.TYPE_MISMATCH, f"{shown(value)} is no {target}: {error}")
            good = None
        converted.append(good)
    return pa.array(converted, target), misfits


def shown(value: Any) -> str:
    """A value for people: its first characters. Its depth and its length are bounded before it is written."""
    text = _DESCRIPTION.repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def _description() -> reprlib.Repr:
    description = reprlib.Repr()
    description.maxlevel = 8
    description.maxlist = description.maxdict = description.maxtuple = _SHOWN_CHARACTERS
    # One character more than is shown, so that reprlib never leaves out the middle of what would be shown whole.
    description.maxstring = description.maxlong = description.maxother = 2 * _SHOWN_CHARACTERS
    return description


_DESCRIPTION = _description()


def _mismatch(value: Any, kind: object) -> Misfit:
    return Misfit(ReasonCode.TYPE_MISMATCH, f"{shown(value)} is no {kind}")


def instant_us(value: Any, unit: TimeUnit) -> int:
    """The microseconds since 1970 a time value stands for.

    Raises:
        Misfit: it is no time, or out of range.
    """
    if unit == "iso8601":
        if not isinstance(value, str):
            raise _mismatch(value, "ISO 8601 time")
        try:
            instant = dt.datetime.fromisoformat(value)
        except ValueError:
            raise _mismatch(value, "ISO 8601 time") from None
        instant = instant if instant.tzinfo else instant.replace(tzinfo=dt.UTC)
        micros = (instant - _EPOCH) // _MICROSECOND
    else:
        micros = _epoch_us(value, unit)
    if not _EARLIEST_US <= micros <= _LATEST_US:
        raise Misfit(ReasonCode.OUT_OF_RANGE, f"{shown(value)} lies outside the years 1900 to 9999")
    return micros


def _epoch_us(value: Any, unit: TimeUnit) -> int:
    if isinstance(value, str):
        try:
            value = int(value) if value.lstrip("-").isdigit() else float(value)
        except ValueError:
            raise _mismatch(value, unit) from None
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise _mismatch(value, unit)
    if abs(value) > 1e15:
        raise Misfit(ReasonCode.OUT_OF_RANGE, f"{shown(value)} lies outside the years 1900 to 9999")
    return round(value * _PER_UNIT_US[unit])


def _converter(kind: ColumnType, unit: TimeUnit) -> Converter:
    """What turns one value into what Arrow takes for `kind`, or raises `Misfit`."""
    if isinstance(kind, Primitive):
        return _primitive_converters(unit)[kind.name]
    if isinstance(kind, Decimal):
        return lambda value: _decimal(value, kind)
    if isinstance(kind, Struct):
        by_name = {name: _converter(field, unit) for name, field in kind.fields}
        return lambda value: _struct(value, by_name, kind)
    if isinstance(kind, Array):
        element = _converter(kind.element, unit)
        return lambda value: _array(value, element, kind)
    held = _converter(kind.value, unit)
    return lambda value: _map(value, held, kind)


def _primitive_converters(unit: TimeUnit) -> dict[str, Converter]:
    return {
        "string": _text,
        "boolean": _boolean,
        "int": lambda value: _integer(value, _INTEGER_BITS["int"]),
        "long": lambda value: _integer(value, _INTEGER_BITS["long"]),
        "float": lambda value: _number(value, "<f"),
        "double": lambda value: _number(value, "<d"),
        "timestamp": lambda value: instant_us(value, unit),
        "date": lambda value: _date(value, unit),
        "binary": lambda value: _text(value).encode(),
    }


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _mismatch(value, "string")
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _mismatch(value, "boolean")
    return value


def _integer(value: Any, bits: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise _mismatch(value, "whole number")
    if not -(1 << bits) <= value < 1 << bits:
        raise Misfit(ReasonCode.OUT_OF_RANGE, f"{shown(value)} needs more than {bits + 1} bits")
    if isinstance(value, float) and abs(value) >= FIRST_ROUNDED:
        raise Misfit(ReasonCode.OUT_OF_RANGE, f"{shown(value)} may have lost digits as a number with a fraction")
    return int(value)


def _number(value: Any, width: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _mismatch(value, "number")
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
        raise _mismatch(value, kind)
    if isinstance(value, float) and not _tells_its_digits(value):
        raise Misfit(ReasonCode.OUT_OF_RANGE, f"{shown(value)} may have lost digits as a number: send it as a text")
    try:
        # repr gives the shortest digits that read back as the same double: 4.99 stays 4.99.
        number = decimal.Decimal(value if isinstance(value, str) else repr(value))
        scaled = number.quantize(decimal.Decimal(1).scaleb(-kind.scale), context=decimal.Context(prec=60))
    except decimal.InvalidOperation:
        raise _mismatch(value, kind) from None
    if scaled != number or len(scaled.as_tuple().digits) > kind.precision:
        raise Misfit(ReasonCode.OUT_OF_RANGE, f"{shown(value)} does not fit {kind}")
    return scaled


def _tells_its_digits(value: float) -> bool:
    """Whether the digits that were sent can be told from the double; a whole number beyond 64 bits is one too."""
    digits = decimal.Decimal(repr(value)).normalize().as_tuple().digits
    return abs(value) < 2.0**63 and len(digits) <= _DIGITS_OF_A_DOUBLE


def _date(value: Any, unit: TimeUnit) -> dt.date:
    # Ten characters are also the seconds since 1970 as text: a date has its dash.
    if isinstance(value, str) and len(value) == 10 and value[4] == "-":
        try:
            return dt.date.fromisoformat(value)
        except ValueError:
            raise _mismatch(value, "date") from None
    return (_EPOCH + instant_us(value, unit) * _MICROSECOND).date()


def _array(value: Any, inner: Converter, kind: ColumnType) -> list[Any]:
    if not isinstance(value, list):
        raise _mismatch(value, kind)
    return [None if item is None else inner(item) for item in value]


def _map(value: Any, inner: Converter, kind: ColumnType) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise _mismatch(value, kind)
    return [(key, None if item is None else inner(item)) for key, item in value.items()]


def _struct(value: Any, inner_by_name: dict[str, Converter], kind: ColumnType) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _mismatch(value, kind)
    return {name: None if value.get(name) is None else inner(value[name]) for name, inner in inner_by_name.items()}
