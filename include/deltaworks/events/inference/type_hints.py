"""Type hints that override inferred types: `a BIGINT, b.c STRING, tags ARRAY<STRING>`.

A hint gives the path of a column, or of a field inside a column, and its type. It changes the inferred type or adds a
column. Names with spaces, dots or commas are quoted with backticks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from deltaworks.events.inference.column_types import RESCUED_NAME, STRUCT_FIELD_NAME, Columns
from deltaworks.specs.types import Array, ColumnType, Map, Struct, parse_type

_NAME = r"(?:`[^`]+`|[^\s.,:`<>()]+)"
_PATH = re.compile(rf"\s*({_NAME}(?:\.{_NAME})*)\s*(?::|\s)\s*(\S.*)", re.DOTALL)
_PART = re.compile(r"`([^`]+)`|([^.`]+)")


@dataclass(frozen=True, slots=True)
class TypeHint:
    """A path and the type that its column or field must have."""

    path: tuple[str, ...]
    kind: ColumnType


def parse_hints(text: str) -> tuple[TypeHint, ...]:
    """Parses the text of type hints.

    Raises:
        ValueError: the message names the invalid part and the syntax.
    """
    hints = []
    for part in _split_hints(text):
        match = _PATH.fullmatch(part)
        if match is None:
            raise ValueError(
                f"{part.strip()!r} is not a type hint: write a name and a type, such as a BIGINT, b.c STRING"
            )
        path = tuple(quoted or plain for quoted, plain in _PART.findall(match.group(1)))
        if path[0].lower() == RESCUED_NAME:
            raise ValueError(f"{RESCUED_NAME} is a reserved column and always a string")
        for name in path[1:]:
            if not STRUCT_FIELD_NAME.fullmatch(name):
                raise ValueError(f"{name!r} cannot be the name of a field inside a column: use letters, digits and _")
        hints.append(TypeHint(path, parse_type(match.group(2))))
    paths = [tuple(name.lower() for name in hint.path) for hint in hints]
    if len(set(paths)) < len(paths):
        raise ValueError("a column has two hints")
    return tuple(hints)


def _split_hints(text: str) -> list[str]:
    """Splits the text at commas that are not inside types or quoted names."""
    parts, depth, quoted, start = [], 0, False, 0
    for index, character in enumerate(text):
        quoted ^= character == "`"
        if quoted:
            continue
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [part for part in [*parts, text[start:]] if part.strip()]


def apply_hints(columns: Columns, hints: Sequence[TypeHint]) -> dict[str, ColumnType]:
    """Returns the columns with the hints applied. Names are matched ignoring case and keep their spelling."""
    merged = dict(columns)
    # Hints with shorter paths first, because a hint for a column would override one for a field inside it.
    for hint in sorted(hints, key=lambda hint: len(hint.path)):
        _set_type(merged, hint.path, hint.kind)
    return merged


def _set_type(fields: dict[str, ColumnType], path: tuple[str, ...], kind: ColumnType) -> None:
    name = next((present for present in fields if present.lower() == path[0].lower()), path[0])
    fields[name] = kind if len(path) == 1 else _set_nested_type(fields.get(name), path[1:], kind)


def _set_nested_type(present: ColumnType | None, path: tuple[str, ...], kind: ColumnType) -> ColumnType:
    if isinstance(present, Array):
        return Array(_set_nested_type(present.element, path, kind))
    if isinstance(present, Map):
        return Map(_set_nested_type(present.value, path, kind))
    fields = dict(present.fields) if isinstance(present, Struct) else {}
    _set_type(fields, path, kind)
    return Struct(tuple(fields.items()))
