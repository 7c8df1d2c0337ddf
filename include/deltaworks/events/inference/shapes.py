"""What values look like at a place of events: of which kinds, how many of each, and what lies inside them.

A shape is noted value by value and merged with others; whatever the order, the outcome is the same. Which column takes
a shape is another matter (`column_types`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

NULL, BOOLEAN, TEXT, DATE, TIMESTAMP = "null", "boolean", "text", "date", "timestamp"
#: Whole numbers of 32 bits (of typed files), those a double has exactly, of 64 bits, and beyond.
INT32, INT53, INT64, LARGE = "int32", "int53", "int64", "large"
FLOAT32, FLOAT64 = "float32", "float64"
OBJECT, ARRAY, MAP = "object", "array", "map"
#: What no column takes: nested deeper than is looked at, or of a type that is not known.
OPAQUE = "opaque"
#: Before the kind of value that a text stands for, in forms that have nothing but texts.
WRITTEN = "text:"
DEEPEST = 20

_EXACT_IN_A_DOUBLE = 1 << 53
_WHOLE_TEXT = re.compile(r"0|-?[1-9][0-9]{0,37}")
_KIND_OF_TYPE = {bool: BOOLEAN, str: TEXT, float: FLOAT64, dict: OBJECT, list: ARRAY, type(None): NULL}


@dataclass(slots=True)
class Shape:
    """Values by kind, the fields of those that are objects, and the elements of those that are arrays or maps.

    `position` is the first place a field was met at among its neighbours.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    fields: dict[str, Shape] = field(default_factory=dict)
    element: Shape | None = None
    position: int = 0

    @property
    def values(self) -> int:
        """How many values there were, null being none."""
        return self.kinds.total() - self.kinds[NULL]

    def note(self, value: Any, *, depth: int = 0) -> None:
        """Take in one value as JSON has it."""
        kind = kind_of(value)
        if depth >= DEEPEST and kind in (OBJECT, ARRAY):
            kind = OPAQUE
        self.kinds[kind] += 1
        if kind == OBJECT:
            for position, (name, inner) in enumerate(value.items()):
                self.inside(name, position).note(inner, depth=depth + 1)
        elif kind == ARRAY and value:
            element = self.elements()
            for inner in value:
                element.note(inner, depth=depth + 1)

    def note_texts(self, fields: Mapping[str, Any], *, typed: bool) -> None:
        """Take in an event whose fields are texts. `typed`: look at what they stand for."""
        self.kinds[OBJECT] += 1
        for position, (name, text) in enumerate(fields.items()):
            self.inside(name, position).kinds[_written_kind(text) if typed else TEXT] += 1

    def inside(self, name: str, position: int) -> Shape:
        """The shape of a field, made where there is none."""
        shape = self.fields.get(name)
        if shape is None:
            shape = self.fields[name] = Shape(position=position)
        elif position < shape.position:
            shape.position = position
        return shape

    def elements(self) -> Shape:
        """The shape of the elements, made where there is none."""
        if self.element is None:
            self.element = Shape()
        return self.element

    def merge(self, other: Self) -> None:
        """Take in all values of another shape, which is left as it is."""
        self.kinds.update(other.kinds)
        for name, inner in other.fields.items():
            self.inside(name, inner.position).merge(inner)
        if other.element is not None:
            self.elements().merge(other.element)


def kind_of(value: Any) -> str:
    """The kind of one value as JSON has it."""
    if type(value) is int:
        if -_EXACT_IN_A_DOUBLE <= value <= _EXACT_IN_A_DOUBLE:
            return INT53
        return INT64 if -(1 << 63) <= value < 1 << 63 else LARGE
    return _KIND_OF_TYPE.get(type(value), OPAQUE)


def _written_kind(text: Any) -> str:
    """What a text stands for, if that would be written as this very text again: `007` and `1.50` would not."""
    if not isinstance(text, str):
        return kind_of(text)
    if text in ("true", "false"):
        return WRITTEN + BOOLEAN
    if _WHOLE_TEXT.fullmatch(text):
        return WRITTEN + kind_of(int(text)) if -(10**20) < int(text) < 10**20 else TEXT
    try:
        number = float(text)
    except ValueError:
        return TEXT
    return WRITTEN + FLOAT64 if repr(number) == text and text not in ("nan", "inf", "-inf") else TEXT
