"""JSON numbers exactly as they were sent, where parsing them as a double changes them.

orjson parses integers beyond 64 bits, and all fractions, as doubles. That is harmless for measurements, but two ids
that differ in their last digit become equal. Where a double is an id or is stored in a text column, the JSON is parsed
again, more slowly, with each number as a literal. Without such a double nothing is parsed again.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from typing import Any

import orjson

#: From here on a double represents several integers.
FIRST_INEXACT_DOUBLE = 2.0**53
# Numbers long enough that a double may not represent them. Begins with the preceding character instead of a
# look-behind, which would take eight times as long.
_LONG_NUMBER = re.compile(rb"[:,\[ \t\r\n](-?\d[\d.]{15,}(?:[eE][+-]?\d+)?)")
# How orjson writes integral doubles that are no longer exact.
_ROUNDED_WHOLE = re.compile(r"\d{16}\.0|\de\+\d")
_LONG_DIGITS = 19


class NumberLiteral(str):
    """A JSON number as it was written."""

    __slots__ = ()


def parse_lossless(text: str | bytes) -> Any:
    """Parses JSON with its numbers as literals.

    Raises:
        ValueError, RecursionError: invalid JSON, or nested more deeply than Python parses.
    """
    return json.loads(text, parse_int=NumberLiteral, parse_float=NumberLiteral)


def dump_lossless(value: Any) -> bytes:
    """Serializes a value as JSON, with literals unchanged.

    Raises:
        TypeError: it is nested too deeply.
    """
    return orjson.dumps(value, default=_literal_fragment, option=orjson.OPT_PASSTHROUGH_SUBCLASS)


def _literal_fragment(value: Any) -> orjson.Fragment:
    if isinstance(value, NumberLiteral):
        return orjson.Fragment(str(value))
    raise TypeError(type(value).__name__)


def number_id_text(literal: str, value: float) -> str:
    """Returns the text of a number used as an id: its literal where parsing changed it, otherwise its canonical
    form."""
    return literal if literal.lstrip("-").isdigit() or _is_rounded(literal, value) else orjson.dumps(value).decode()


def _is_rounded(literal: str, value: float) -> bool:
    try:
        return Decimal(literal) != Decimal(repr(value))
    except InvalidOperation:  # an exponent out of range
        return True


def has_rounded_number(raw: bytes) -> bool:
    """Returns whether parsing with orjson changes some number of a JSON text. Digits inside strings may cause false
    positives.
    """
    return any(_is_changed(match[1]) for match in _LONG_NUMBER.finditer(raw))


def _is_changed(number: bytes) -> bool:
    if len(number) < _LONG_DIGITS and number.isdigit():
        return False
    try:
        value = orjson.loads(number)
    except orjson.JSONDecodeError:  # in a string
        return False
    # Most doubles are sent as their shortest digits; comparing those is cheaper than computing.
    return type(value) is float and orjson.dumps(value) != number and _is_rounded(number.decode(), value)


def may_be_rounded(text: str) -> bool:
    """Returns whether JSON written by orjson may contain an integer, perhaps an id, that differs from the sent one."""
    # Most texts contain neither substring, and a substring search takes a thirtieth of the time.
    return ("e+" in text or ".0" in text) and _ROUNDED_WHOLE.search(text) is not None


def restore_literals(part: dict[str, Any], exact: Any) -> dict[str, Any]:
    """Returns a part of an event with its values replaced by those of the lossless event at the same paths."""
    if type(exact) is not dict:
        return part
    return {
        name: restore_literals(value, exact[name]) if type(value) is dict and name in exact else exact.get(name, value)
        for name, value in part.items()
    }
