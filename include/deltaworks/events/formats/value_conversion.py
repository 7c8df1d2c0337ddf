"""Converts values of formats that lack JSON types: parses texts by column type, and encodes typed values as JSON."""

from __future__ import annotations

import datetime as dt
import decimal
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from deltaworks.events.budget import FramedEvent
from deltaworks.events.formats.json_recovery import Malformed
from deltaworks.events.lossless_numbers import NUMBER
from deltaworks.events.reasons import format_value, to_printable
from deltaworks.specs.types import Array, ColumnType, Map, Primitive, Struct

_MAX_DOUBLE_DIGITS = 15
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_BOOLEANS = {"true": True, "false": False}


def parse_text(value: Any, kind: ColumnType) -> Any:
    """Parses a text to a value of the column's type. An invalid text is returned unchanged, and then fails to
    convert."""
    if not isinstance(value, str):
        return value
    try:
        if isinstance(kind, Array | Map | Struct):
            return _parse_nested(orjson.loads(value), kind)
        if isinstance(kind, Primitive) and kind.name in _TEXT_PARSERS:
            return _TEXT_PARSERS[kind.name](value.strip())
    except ValueError:
        pass
    return value


def _parse_nested(value: Any, kind: ColumnType) -> Any:
    """Parses the texts inside a JSON array or object by the element and field types of the column."""
    match kind:
        case Array(element) if isinstance(value, list):
            return [_parse_nested(item, element) for item in value]
        case Map(held) if isinstance(value, dict):
            return {name: _parse_nested(item, held) for name, item in value.items()}
        case Struct(fields) if isinstance(value, dict):
            return value | {name: _parse_nested(value[name], field) for name, field in fields if name in value}
    return parse_text(value, kind)


def _parse_integer(text: str) -> int | str:
    return int(text) if _INTEGER.fullmatch(text) else text


def _parse_number(text: str) -> float | str:
    return float(text) if NUMBER.fullmatch(text) else text


def _parse_boolean(text: str) -> bool | str:
    return _BOOLEANS.get(text.lower(), text)


_TEXT_PARSERS: dict[str, Callable[[str], Any]] = {
    "int": _parse_integer,
    "long": _parse_integer,
    "float": _parse_number,
    "double": _parse_number,
    "boolean": _parse_boolean,
}


def to_json_value(value: Any) -> Any:
    """Converts a value to JSON types.

    Times become ISO 8601 texts. Decimals become numbers if exact, else texts. Bytes become hexadecimal text, also those
    that are valid UTF-8, so that equal texts are equal bytes. Keys become texts.
    """
    if isinstance(value, dict):
        return {_encode_key(name): to_json_value(item) for name, item in value.items()}
    if isinstance(value, list):
        return [to_json_value(item) for item in value]
    if type(value) in _JSON_TYPES:
        return value
    for kind, encode in _JSON_ENCODERS.items():
        if isinstance(value, kind):
            return encode(value)
    return value


def record_to_event(record: Mapping[str, Any]) -> FramedEvent:
    """Converts a record of typed values to an event and its bytes; to `Malformed` if a value has no JSON form."""
    try:
        event = to_json_value(record)
        return event, orjson.dumps(event, default=str)
    except (ArithmeticError, RecursionError, TypeError, ValueError) as error:
        raw = to_printable(format_value(record)).encode()
        return Malformed(raw, f"a record cannot be serialized as JSON: {error}"), raw


def _encode_decimal(value: decimal.Decimal) -> float | str:
    # With more digits than this, a double does not determine the decimal.
    number = float(value)
    few = len(value.normalize().as_tuple().digits) <= _MAX_DOUBLE_DIGITS and abs(number) < 2.0**63
    return number if few and decimal.Decimal(repr(number)) == value else str(value)


def _encode_key(key: Any) -> str:
    if isinstance(key, str):
        return key
    value = to_json_value(key)
    return value if isinstance(value, str) else orjson.dumps(value).decode()


_JSON_TYPES = frozenset({type(None), str, int, float, bool})
#: By type or base type; Arrow returns some times as pandas' types.
_JSON_ENCODERS: dict[type, Callable[[Any], Any]] = {
    dt.datetime: dt.datetime.isoformat,
    dt.date: dt.date.isoformat,
    dt.time: dt.time.isoformat,
    dt.timedelta: dt.timedelta.total_seconds,
    decimal.Decimal: _encode_decimal,
    uuid.UUID: str,
    bytes: bytes.hex,
}
