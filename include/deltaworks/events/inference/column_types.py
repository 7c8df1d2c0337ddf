"""Shapes of sampled values, and the narrowest column types that hold them exactly.

A shape counts the kinds of values of a field. Shapes are merged, independent of the order. If no type holds all values
of a field, the column gets the type of most values and the others are reported as a conflict; it does not become text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from deltaworks.specs.types import Array, ColumnType, Decimal, Map, Primitive, Struct, parse_type

NULL, BOOLEAN, TEXT, DATE, TIMESTAMP = "null", "boolean", "text", "date", "timestamp"
#: Kinds of integers: 32 bits (from typed files), exact as a double, 64 bits, and larger.
INT32, INT53, INT64, LARGE = "int32", "int53", "int64", "large"
FLOAT32, FLOAT64 = "float32", "float64"
OBJECT, ARRAY, MAP = "object", "array", "map"
#: Kind of values without a column type: nested too deeply, or of an unknown type.
OPAQUE = "opaque"
#: Prefix of kinds that were parsed from texts, in formats that have only texts.
TEXT_PREFIX = "text:"
MAX_DEPTH = 20

_MAX_EXACT_DOUBLE = 1 << 53
_INTEGER_TEXT = re.compile(r"0|-?[1-9][0-9]{0,37}")
_KIND_OF_TYPE = {bool: BOOLEAN, str: TEXT, float: FLOAT64, dict: OBJECT, list: ARRAY, type(None): NULL}


@dataclass(slots=True)
class Shape:
    """Counts values by kind, with the shapes of object fields and of array or map elements.

    The smallest index at which a field occurred in its object is its `position`.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    fields: dict[str, Shape] = field(default_factory=dict)
    element: Shape | None = None
    position: int = 0

    @property
    def values(self) -> int:
        """Number of values other than null."""
        return self.kinds.total() - self.kinds[NULL]

    def add_value(self, value: Any, *, depth: int = 0) -> None:
        """Adds one JSON value."""
        kind = json_kind(value)
        if depth >= MAX_DEPTH and kind in (OBJECT, ARRAY):
            kind = OPAQUE
        self.kinds[kind] += 1
        if kind == OBJECT:
            for position, (name, inner) in enumerate(value.items()):
                self.field_shape(name, position).add_value(inner, depth=depth + 1)
        elif kind == ARRAY and value:
            element = self.element_shape()
            for inner in value:
                element.add_value(inner, depth=depth + 1)

    def add_texts(self, fields: Mapping[str, Any], *, typed: bool) -> None:
        """Adds an event whose fields are texts. With `typed`, numbers and booleans are recognized in the texts."""
        self.kinds[OBJECT] += 1
        for position, (name, text) in enumerate(fields.items()):
            self.field_shape(name, position).kinds[_text_kind(text) if typed else TEXT] += 1

    def field_shape(self, name: str, position: int) -> Shape:
        """Returns the shape of a field; creates it on first use."""
        shape = self.fields.get(name)
        if shape is None:
            shape = self.fields[name] = Shape(position=position)
        elif position < shape.position:
            shape.position = position
        return shape

    def element_shape(self) -> Shape:
        """Returns the shape of array or map elements; creates it on first use."""
        if self.element is None:
            self.element = Shape()
        return self.element

    def merge(self, other: Self) -> None:
        """Adds all counts of another shape, which stays unchanged."""
        self.kinds.update(other.kinds)
        for name, inner in other.fields.items():
            self.field_shape(name, inner.position).merge(inner)
        if other.element is not None:
            self.element_shape().merge(other.element)


def json_kind(value: Any) -> str:
    """Returns the kind of one JSON value."""
    if type(value) is int:
        if -_MAX_EXACT_DOUBLE <= value <= _MAX_EXACT_DOUBLE:
            return INT53
        return INT64 if -(1 << 63) <= value < 1 << 63 else LARGE
    return _KIND_OF_TYPE.get(type(value), OPAQUE)


def _text_kind(text: Any) -> str:
    """Returns the kind of the value in a text, if it would be written as the same text again; `007` and `1.50` would
    not.
    """
    if not isinstance(text, str):
        return json_kind(text)
    if text in ("true", "false"):
        return TEXT_PREFIX + BOOLEAN
    if _INTEGER_TEXT.fullmatch(text):
        return TEXT_PREFIX + json_kind(int(text)) if -(10**20) < int(text) < 10**20 else TEXT
    try:
        number = float(text)
    except ValueError:
        return TEXT
    return TEXT_PREFIX + FLOAT64 if repr(number) == text and text not in ("nan", "inf", "-inf") else TEXT


#: Maximum number of columns. Further fields go to the rescued column.
MAX_COLUMNS = 1_000
RESCUED_NAME = "_rescued_data"
#: Columns for the origin of a row. Event fields with these names get no column.
PROVENANCE_COLUMNS = ("_bucket", "_key", "_seq", "_position")
STRING = Primitive("string")

_RESERVED = frozenset({*PROVENANCE_COLUMNS, RESCUED_NAME})
_SINGLE_KIND_TYPES = {BOOLEAN: "boolean", TEXT: "string", DATE: "date", TIMESTAMP: "timestamp"}
_MAX_DIGITS = {INT32: 10, INT53: 16, INT64: 19, LARGE: 20}
_EXACT_AS_DOUBLE = frozenset({FLOAT32, FLOAT64, INT32, INT53})
_NESTED_KINDS = frozenset({OBJECT, ARRAY, MAP, OPAQUE})
#: Names that column types allow for struct fields.
STRUCT_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNQUOTED_NAME = re.compile(r"[^\s.,`<>():]+")
_COLUMN_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,255}")

Columns = Mapping[str, ColumnType]


@dataclass(frozen=True, slots=True)
class Conflict:
    """Number of sampled values of a field that do not fit its column."""

    path: str
    kind: str
    values: int

    def __str__(self) -> str:
        return f"{self.path}: {self.values} {self.kind}"


def narrowest_type(kinds: Collection[str]) -> ColumnType | None:
    """Returns the narrowest type that holds all values of these kinds exactly; None if there is none."""
    distinct = frozenset(kinds)
    if any(kind.startswith(TEXT_PREFIX) for kind in distinct):
        if not all(kind == TEXT or kind.startswith(TEXT_PREFIX) for kind in distinct):
            return None
        # Values of text formats can always be strings.
        return narrowest_type({kind.removeprefix(TEXT_PREFIX) for kind in distinct}) or STRING
    if len(distinct) == 1 and distinct <= _SINGLE_KIND_TYPES.keys():
        return Primitive(_SINGLE_KIND_TYPES[next(iter(distinct))])
    if distinct & {FLOAT32, FLOAT64}:
        if distinct == {FLOAT32}:
            return Primitive("float")
        return Primitive("double") if distinct <= _EXACT_AS_DOUBLE else None
    return _exact_number_type(distinct)


def _exact_number_type(kinds: Collection[str]) -> ColumnType | None:
    integer_digits, scale = 0, 0
    for kind in kinds:
        if kind in _MAX_DIGITS:
            integer_digits = max(integer_digits, _MAX_DIGITS[kind])
            continue
        decimal = parse_type(kind) if kind.startswith("decimal") else None
        if not isinstance(decimal, Decimal):
            return None
        integer_digits, scale = max(integer_digits, decimal.precision - decimal.scale), max(scale, decimal.scale)
    if all(kind in (INT32, INT53, INT64) for kind in kinds):
        return Primitive("int" if set(kinds) == {INT32} else "long")
    return Decimal(integer_digits + scale, scale) if integer_digits + scale <= 38 else None


def infer_type(shape: Shape, *, path: str = "", conflicts: list[Conflict] | None = None) -> ColumnType | None:
    """Infers the type of a field from its shape; None if there are no usable values.

    Args:
        conflicts: receives values that do not fit the type.
    """
    chosen: ColumnType | None = None
    plain: list[str] = []
    for kind, count in sorted(shape.kinds.items(), key=lambda item: (-item[1], item[0])):
        if kind == NULL:
            continue
        fits = None
        if kind in _NESTED_KINDS and chosen is None:
            fits = _infer_nested_type(shape, kind, path, conflicts)
        elif kind not in _NESTED_KINDS and (chosen is None or plain):
            fits = narrowest_type([*plain, kind])
            plain += [kind] if fits is not None else []
        if fits is not None:
            chosen = fits
        elif conflicts is not None:
            conflicts.append(Conflict(path, kind, count))
    return chosen


def _infer_nested_type(shape: Shape, kind: str, path: str, conflicts: list[Conflict] | None) -> ColumnType | None:
    if kind == OBJECT:
        fields = tuple(_infer_fields(shape, STRUCT_FIELD_NAME, f"{path}.", conflicts))
        return Struct(fields) if fields else None
    if kind == OPAQUE or shape.element is None:
        return None
    element = infer_type(shape.element, path=f"{path}[]", conflicts=conflicts)
    if element is None:
        return None
    return Map(element) if kind == MAP else Array(element)


def _infer_fields(
    shape: Shape, name_fits: re.Pattern[str], path: str, conflicts: list[Conflict] | None
) -> Iterator[tuple[str, ColumnType]]:
    """Yields the fields that can become columns, in order. If names differ only in case, the most frequent one wins."""
    by_lower: dict[str, tuple[str, ColumnType]] = {}
    for name in _names_by_count(shape, name_fits):
        if name.lower() in by_lower:
            continue
        kind = infer_type(shape.fields[name], path=path + name, conflicts=conflicts)
        if kind is not None:
            by_lower[name.lower()] = name, kind
    yield from sorted(by_lower.values(), key=lambda named: (shape.fields[named[0]].position, named[0]))


def _names_by_count(shape: Shape, name_fits: re.Pattern[str]) -> list[str]:
    fitting = [name for name, inner in shape.fields.items() if inner.values and name_fits.fullmatch(name)]
    return sorted(fitting, key=lambda name: (-shape.fields[name].values, name))


def infer_columns(
    shape: Shape, *, typed: bool = True, conflicts: list[Conflict] | None = None, max_columns: int = MAX_COLUMNS
) -> dict[str, ColumnType]:
    """Infers the columns for events of this shape, in field order. Without `typed`, all columns are strings."""
    if typed:
        columns = dict(_infer_fields(shape, _COLUMN_NAME, "", conflicts))
    else:
        by_lower = {name.lower(): name for name in reversed(_names_by_count(shape, _COLUMN_NAME))}
        in_order = sorted(by_lower.values(), key=lambda name: (shape.fields[name].position, name))
        columns = dict.fromkeys(in_order, STRING)
    free = {name: kind for name, kind in columns.items() if name.lower() not in _RESERVED}
    if len(free) <= max_columns:
        return free
    most_frequent = set(sorted(free, key=lambda name: (-shape.fields[name].values, name))[:max_columns])
    return {name: kind for name, kind in free.items() if name in most_frequent}


def add_new_columns(columns: Columns, shape: Shape, *, typed: bool = True) -> dict[str, ColumnType]:
    """Returns the columns extended by new fields, also inside structs. Existing types do not change."""
    if _count_columns(columns) >= MAX_COLUMNS:
        return dict(columns)
    merged = {
        name: _extend_type(kind, shape.fields[name]) if name in shape.fields else kind for name, kind in columns.items()
    }
    used_names = {name.lower() for name in columns}
    for name, kind in infer_columns(shape, typed=typed).items():
        if name.lower() not in used_names:
            merged[name] = kind
    return merged


def _extend_type(kind: ColumnType, shape: Shape) -> ColumnType:
    if isinstance(kind, Struct):
        fields = {
            name: _extend_type(inner, shape.fields[name]) if name in shape.fields else inner
            for name, inner in kind.fields
        }
        used_names = {name.lower() for name in fields}
        for name, inner in _infer_fields(shape, STRUCT_FIELD_NAME, "", None):
            if name.lower() not in used_names:
                fields[name] = inner
        return Struct(tuple(fields.items()))
    if isinstance(kind, Array) and shape.element is not None:
        return Array(_extend_type(kind.element, shape.element))
    if isinstance(kind, Map) and shape.element is not None:
        return Map(_extend_type(kind.value, shape.element))
    return kind


def changed_paths(before: Columns, after: Columns, *, prefix: str = "") -> list[str]:
    """Returns columns and struct fields that are new or changed in `after`, in the syntax of type hints."""
    paths = []
    for name, kind in after.items():
        path = prefix + (name if _UNQUOTED_NAME.fullmatch(name) else f"`{name}`")
        present = before.get(name)
        if present == kind:
            continue
        present_fields, new_fields = _struct_fields(present), _struct_fields(kind)
        if present_fields is None or new_fields is None:
            paths.append(f"{path} {kind}")
        else:
            paths += changed_paths(present_fields, new_fields, prefix=f"{path}.")
    return paths


def _struct_fields(kind: ColumnType | None) -> Columns | None:
    """Returns the fields of a struct type, or of the struct inside an array or map type."""
    if isinstance(kind, Array | Map):
        return _struct_fields(kind.element if isinstance(kind, Array) else kind.value)
    return dict(kind.fields) if isinstance(kind, Struct) else None


def _count_columns(columns: Columns) -> int:
    return sum(1 + _count_columns(_struct_fields(kind) or {}) for kind in columns.values())
