"""Parses column types: `string`, `decimal(12,2)`, `array<struct<item: string, count: int>>`.

The grammar is that of Spark DDL and Delta. Parsing returns a small tree, and other modules convert it to Arrow, Spark
DDL or DuckDB. Specs therefore do not depend on these libraries.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any

from pydantic import BeforeValidator

PRIMITIVES = (
    "string",
    "int",
    "long",
    "float",
    "double",
    "boolean",
    "date",
    "timestamp",
    "binary",
)
#: Type of the column with undeclared fields. Columns cannot be declared with it, and it has no use inside other types.
VARIANT = "variant"
_KNOWN_TYPES = ", ".join((*PRIMITIVES, "decimal(p,s)", "array<T>", "map<string,T>", "struct<a: T>"))
_SYNONYMS = {"bigint": "long", "integer": "int", "bool": "boolean", "text": "string"}
_TOKEN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|\d+|[<>(),:])")


@dataclass(frozen=True, slots=True)
class Primitive:
    """A type without parameters or nested types, such as `string`."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Decimal:
    """A decimal with `precision` digits in total, `scale` of them after the point."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True, slots=True)
class Array:
    """A list type with its element type."""

    element: ColumnType

    def __str__(self) -> str:
        return f"array<{self.element}>"


@dataclass(frozen=True, slots=True)
class Map:
    """A map type from strings (JSON keys) to a value type."""

    value: ColumnType

    def __str__(self) -> str:
        return f"map<string,{self.value}>"


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct type with its fields in order."""

    fields: tuple[tuple[str, ColumnType], ...]

    def __str__(self) -> str:
        return "struct<" + ",".join(f"{name}:{kind}" for name, kind in self.fields) + ">"


ColumnType = Primitive | Decimal | Array | Map | Struct


#: Maximum nesting, by the engines that read the tables; far below Python's recursion limit.
_MAX_NESTING = 64


class _Parser:
    """Recursive-descent parser of a type."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._tokenize(text)
        self._position = 0

    @staticmethod
    def _tokenize(text: str) -> list[str]:
        tokens, position = [], 0
        while position < len(text.rstrip()):
            match = _TOKEN.match(text, position)
            if match is None:
                raise ValueError(f"unexpected character {text[position]!r} in the type {text!r}")
            tokens.append(match.group(1))
            position = match.end()
        return tokens

    def parse(self) -> ColumnType:
        depths = accumulate((part == "<") - (part == ">") for part in self._tokens)
        if max(depths, default=0) > _MAX_NESTING:
            raise ValueError(f"the type is nested more than {_MAX_NESTING} levels deep")
        if self._tokens == [VARIANT]:
            return Primitive(VARIANT)
        kind = self._type()
        if self._position != len(self._tokens):
            raise ValueError(f"unexpected {self._tokens[self._position]!r} after the type in {self._text!r}")
        return kind

    def _next_token(self, expected: str | None = None) -> str:
        if self._position >= len(self._tokens):
            raise ValueError(f"the type {self._text!r} ends too early")
        token = self._tokens[self._position]
        if expected is not None and token != expected:
            raise ValueError(f"expected {expected!r}, found {token!r} in the type {self._text!r}")
        self._position += 1
        return token

    def _type(self) -> ColumnType:
        name = self._next_token().lower()
        name = _SYNONYMS.get(name, name)
        if name in PRIMITIVES:
            return Primitive(name)
        if name == "decimal":
            return self._decimal()
        if name == "array":
            self._next_token("<")
            element = self._type()
            self._next_token(">")
            return Array(element)
        if name == "map":
            return self._map()
        if name == "struct":
            return self._struct()
        raise ValueError(f"unknown type {name!r}; known types are {_KNOWN_TYPES}")

    def _decimal(self) -> Decimal:
        self._next_token("(")
        precision = self._number()
        self._next_token(",")
        scale = self._number()
        self._next_token(")")
        if not 1 <= precision <= 38 or not 0 <= scale <= precision:
            raise ValueError("a decimal has a precision of 1 to 38 and a scale of 0 to its precision")
        return Decimal(precision, scale)

    def _number(self) -> int:
        token = self._next_token()
        if not token.isdigit():
            raise ValueError(f"expected a number, found {token!r} in the type {self._text!r}")
        return int(token)

    def _map(self) -> Map:
        self._next_token("<")
        if self._type() != Primitive("string"):
            raise ValueError("map keys must be strings, as in JSON: map<string,T>")
        self._next_token(",")
        value = self._type()
        self._next_token(">")
        return Map(value)

    def _struct(self) -> Struct:
        self._next_token("<")
        fields: list[tuple[str, ColumnType]] = []
        while True:
            name = self._next_token()
            if not name.isidentifier() or name in dict(fields):
                raise ValueError(f"{name!r} is invalid or repeated as a field of the struct in {self._text!r}")
            self._next_token(":")
            fields.append((name, self._type()))
            separator = self._next_token()
            if separator == ">":
                return Struct(tuple(fields))
            if separator != ",":
                raise ValueError(f"expected ',' or '>', found {separator!r} in the type {self._text!r}")


def parse_type(text: str) -> ColumnType:
    """Parses a column type, such as `array<string>`.

    Raises:
        ValueError: the text is not a valid type; the message says what was expected.
    """
    return _Parser(text).parse()


def contains_type(kind: ColumnType, *names: str) -> bool:
    """Returns whether the type is, or contains, one of the primitive types with these names."""
    match kind:
        case Primitive(name):
            return name in names
        case Array(inner) | Map(inner):
            return contains_type(inner, *names)
        case Struct(fields):
            return any(contains_type(field, *names) for _, field in fields)
    return False


def parse_declared_type(text: str) -> ColumnType:
    """Parses the type of a declared column.

    Raises:
        ValueError: as `parse_type`, or the type is `variant`.
    """
    kind = parse_type(text)
    if kind == Primitive(VARIANT):
        raise ValueError(
            f"only undeclared fields can be a variant (keep_rest: variant); the types of columns are {_KNOWN_TYPES}"
        )
    return kind


def _canonical(value: Any) -> Any:
    return str(parse_declared_type(value)) if isinstance(value, str) else value


TypeText = Annotated[str, BeforeValidator(_canonical)]
