"""What columns do not take of an event, kept as JSON in a column of its own: nothing of an event vanishes.

That is: fields of no column, also of another case and inside objects; values that are not of their column's type, the
rest of their object staying in its column; an array as a whole where something in it has no place. Null is nothing.
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
#: Gives what of a value no type takes, or None.
_LeftoverFinder = Callable[[Any], Any]


class RescuedDataFinder:
    """Finds what columns leave of events.

    Args:
        columns: those that are read from events; a field of any other name is left over.
    """

    def __init__(self, columns: Sequence[tuple[str, ColumnType]]) -> None:
        self._names = frozenset(name for name, _ in columns)
        self._nested = [(name, beyond) for name, kind in columns if (beyond := _leftover_finder(kind)) is not None]

    def find(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """The fields nobody takes, where they were in the event; empty where there are none."""
        left_over = {name: event[name] for name in event.keys() - self._names if event[name] is not None}
        for name, inner in self._nested:
            value = event.get(name)
            left = None if value is None else inner(value)
            if left is not None:
                left_over[name] = left
        return left_over


def split_by_type(value: Any, kind: ColumnType) -> tuple[Any, Any]:
    """What of a value its type takes, and what it does not, either None where there is none."""
    if value is None:
        return None, None
    if isinstance(kind, Struct) and isinstance(value, dict):
        kept, left = {}, {}
        for name, inner in kind.fields:
            fits, rest = split_by_type(value.get(name), inner)
            if fits is not None:
                kept[name] = fits
            if rest is not None:
                left[name] = rest
        return kept, left or None
    if convert_column([value], kind)[1] or not is_exact(value, kind):
        # JSON has no number for it, and would be written as null.
        return None, str(value) if isinstance(value, float) and not math.isfinite(value) else value
    return value, None


def has_floats(kind: ColumnType) -> bool:
    """Whether values of a type hold numbers that are rounded."""
    match kind:
        case Struct(fields):
            return any(has_floats(inner) for _, inner in fields)
        case Array(inner) | Map(inner):
            return has_floats(inner)
    return kind in (_DOUBLE, _FLOAT)


def is_exact(value: Any, kind: ColumnType) -> bool:
    """Whether every number in a value is the same in its type; declared columns round, those that were found do not."""
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
    """Whether a text is what its number would be written as: `007` as 7 is not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    if isinstance(value, int):
        return text.strip() == str(value)
    return math.isfinite(value) and not _LEADING_ZERO.match(text.strip()) and Decimal(text) == Decimal(repr(value))


def merge_leftovers(one: Any, other: Any) -> Any:
    """Leftovers of the same field together; a whole value takes in its parts."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: merge_leftovers(one.get(name), other.get(name)) for name in {**one, **other}}
    return one if other is None else other


def _leftover_finder(kind: ColumnType) -> _LeftoverFinder | None:
    """What finds leftovers inside values of a type; None for a type that takes its values whole."""
    if isinstance(kind, Struct):
        inside = RescuedDataFinder(kind.fields)
        return lambda value: (inside.find(value) or None) if isinstance(value, dict) else None
    if isinstance(kind, Array):
        element = _leftover_finder(kind.element)
        return None if element is None else lambda value: _array_leftovers(value, element)
    if isinstance(kind, Map):
        held = _leftover_finder(kind.value)
        return None if held is None else lambda value: _map_leftovers(value, held)
    return None


def _array_leftovers(value: Any, element: _LeftoverFinder) -> Any:
    # Parts of an array would not say which of its elements they belong to.
    if isinstance(value, list) and any(item is not None and element(item) is not None for item in value):
        return value
    return None


def _map_leftovers(value: Any, held: _LeftoverFinder) -> Any:
    if not isinstance(value, dict):
        return None
    left_over = {name: held(item) for name, item in value.items() if item is not None}
    return {name: left for name, left in left_over.items() if left is not None} or None
