"""Reads JSON numbers exactly as they were sent, if parsing them as doubles changes them.

orjson parses integers beyond 64 bits, and all fractions, as doubles. That is harmless for measurements, but two ids
that differ in their last digit become equal. So if a double is an id or goes to a text column, the JSON is parsed
again, more slowly, with each number as a literal.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from typing import Any

import orjson

#: From this number on, several integers have the same double.
FIRST_INEXACT_DOUBLE = 2.0**53
#: A number in a text. Python's own types also accept `1_000`, digits of other scripts, and `nan`.
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
# Matches numbers with so many digits that a double may not represent them. It includes the preceding character, because
# a look-behind would take eight times as long.
_LONG_NUMBER = re.compile(rb"[:,\[ \t\r\n](-?\d[\d.]{15,}(?:[eE][+-]?\d+)?)")
# Matches integral doubles, as orjson writes them, that may have been rounded.
_ROUNDED_INTEGER = re.compile(r"\d{16}\.0|\de\+\d")
_LONG_DIGITS = 19


class NumberLiteral(str):
    """A JSON number with its original digits."""

    __slots__ = ()


def parse_lossless(text: str | bytes) -> Any:
    """Parses JSON with its numbers as literals.

    Raises:
        ValueError, RecursionError: the JSON is invalid, or nested too deeply.
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
    """Returns the text of a number used as an id: its literal if parsing changed it, otherwise its canonical form."""
    return literal if literal.lstrip("-").isdigit() or _is_rounded(literal, value) else orjson.dumps(value).decode()


def _is_rounded(literal: str, value: float) -> bool:
    try:
        return Decimal(literal) != Decimal(repr(value))
    except InvalidOperation:  # an exponent out of range
        return True


def has_rounded_number(raw: bytes) -> bool:
    """Returns whether orjson would change some number of a JSON text. May return True because of digits inside
    strings."""
    return any(_is_changed(match[1]) for match in _LONG_NUMBER.finditer(raw))


def _is_changed(number: bytes) -> bool:
    if len(number) < _LONG_DIGITS and number.isdigit():
        return False
    try:
        value = orjson.loads(number)
    except orjson.JSONDecodeError:  # these digits are inside a string
        return False
    # Most doubles are sent with their shortest digits; comparing texts is cheaper than decimal arithmetic.
    return type(value) is float and orjson.dumps(value) != number and _is_rounded(number.decode(), value)


def may_be_rounded(text: str) -> bool:
    """Returns whether JSON written by orjson may contain an integer that was rounded when it was parsed."""
    # Most texts contain neither substring, and a substring search takes a thirtieth of the time.
    return ("e+" in text or ".0" in text) and _ROUNDED_INTEGER.search(text) is not None


def restore_literals(part: dict[str, Any], exact: Any) -> dict[str, Any]:
    """Returns a part of an event with its values taken from the same paths of the lossless event."""
    if type(exact) is not dict:
        return part
    return {
        name: restore_literals(value, exact[name]) if type(value) is dict and name in exact else exact.get(name, value)
        for name, value in part.items()
    }
