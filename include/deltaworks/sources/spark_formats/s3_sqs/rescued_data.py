"""Rescued data: content of events that fits no column. It is stored as JSON in a separate column, so nothing is lost.

- Fields without a column, including those that differ only in case, at any depth.
- Values of another type; the rest of their object stays in its column.
- A complete array if one of its elements does not fit.

Nulls are ignored.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from deltaworks.events.columns import convert_column
from deltaworks.specs.types import Array, ColumnType, Map, Primitive, Struct

_DOUBLE, _FLOAT = Primitive("double"), Primitive("float")
_MAX_EXACT_DOUBLE_INTEGER = 1 << 53
_LEADING_ZERO = re.compile(r"[+-]?0[0-9]")
#: A function that returns the part of a value that its type does not accept, or None.
_LeftoverFinder = Callable[[Any], Any]


class RescuedDataFinder:
    """Finds the content of events that fits no column.

    Args:
        columns: columns read from events; fields with another name are leftovers.
    """

    def __init__(self, columns: Sequence[tuple[str, ColumnType]]) -> None:
        self._names = frozenset(name for name, _ in columns)
        self._nested = [(name, finder) for name, kind in columns if (finder := _leftover_finder(kind)) is not None]

    def find(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the content of an event that fits no column, with its original nesting; empty if everything fits."""
        leftovers = {name: event[name] for name in event.keys() - self._names if event[name] is not None}
        for name, inner in self._nested:
            value = event.get(name)
            leftover = None if value is None else inner(value)
            if leftover is not None:
                leftovers[name] = leftover
        return leftovers


def split_by_type(value: Any, kind: ColumnType) -> tuple[Any, Any]:
    """Splits a value into the part that its type accepts and the rest; either may be None."""
    if value is None:
        return None, None
    if isinstance(kind, Struct) and isinstance(value, dict):
        accepted_fields, leftover_fields = {}, {}
        for name, inner in kind.fields:
            accepted, leftover = split_by_type(value.get(name), inner)
            if accepted is not None:
                accepted_fields[name] = accepted
            if leftover is not None:
                leftover_fields[name] = leftover
        return accepted_fields, leftover_fields or None
    if convert_column([value], kind)[1] or not is_exact(value, kind):
        # JSON has no representation for this number and would store null.
        return None, str(value) if isinstance(value, float) and not math.isfinite(value) else value
    return value, None


def has_floats(kind: ColumnType) -> bool:
    """Returns whether a type is or contains a floating-point type."""
    match kind:
        case Struct(fields):
            return any(has_floats(inner) for _, inner in fields)
        case Array(inner) | Map(inner):
            return has_floats(inner)
    return kind in (_DOUBLE, _FLOAT)


def is_exact(value: Any, kind: ColumnType) -> bool:
    """Returns whether a type represents every number in a value exactly. Declared columns may round, inferred ones must
    not.
    """
    match kind:
        case Struct(fields) if isinstance(value, dict):
            return all(is_exact(value.get(name), inner) for name, inner in fields)
        case Array(inner) if isinstance(value, list):
            return all(is_exact(item, inner) for item in value)
        case Map(inner) if isinstance(value, dict):
            return all(is_exact(item, inner) for item in value.values())
    if kind == _DOUBLE:
        return type(value) is not int or abs(value) <= _MAX_EXACT_DOUBLE_INTEGER
    return kind != _FLOAT or not isinstance(value, int | float) or _fits_float(value)


def _fits_float(value: float) -> bool:
    try:
        return bool(struct.unpack("<f", struct.pack("<f", value))[0] == value)
    except OverflowError:
        return False


def is_canonical_number(text: str, value: Any) -> bool:
    """Returns whether a text is the usual notation of its number; `007` for 7 is not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    if isinstance(value, int):
        return text.strip() == str(value)
    return math.isfinite(value) and not _LEADING_ZERO.match(text.strip()) and Decimal(text) == Decimal(repr(value))


def merge_leftovers(first: Any, second: Any) -> Any:
    """Merges two leftovers (content that fits no column) of the same field. A complete value replaces its parts."""
    if isinstance(first, dict) and isinstance(second, dict):
        return {name: merge_leftovers(first.get(name), second.get(name)) for name in {**first, **second}}
    return first if second is None else second


def _leftover_finder(kind: ColumnType) -> _LeftoverFinder | None:
    """Returns a function that finds content of a nested value that its type does not accept; None for flat types."""
    if isinstance(kind, Struct):
        finder = RescuedDataFinder(kind.fields)
        return lambda value: (finder.find(value) or None) if isinstance(value, dict) else None
    if isinstance(kind, Array):
        element = _leftover_finder(kind.element)
        return None if element is None else lambda value: _array_leftovers(value, element)
    if isinstance(kind, Map):
        value_finder = _leftover_finder(kind.value)
        return None if value_finder is None else lambda value: _map_leftovers(value, value_finder)
    return None


def _array_leftovers(value: Any, element: _LeftoverFinder) -> Any:
    # Parts of an array would not identify their elements.
    if isinstance(value, list) and any(item is not None and element(item) is not None for item in value):
        return value
    return None


def _map_leftovers(value: Any, value_finder: _LeftoverFinder) -> Any:
    if not isinstance(value, dict):
        return None
    leftovers = {name: value_finder(item) for name, item in value.items() if item is not None}
    return {name: leftover for name, leftover in leftovers.items() if leftover is not None} or None
