"""Numbers of JSON as they were sent, where reading them as a double made another number of them.

orjson reads whole numbers beyond 64 bits, and any fraction, as doubles. To a measurement that is nothing; two ids that
differ in their last digit become one. So where a double stands for an id, or goes into what is kept for people, the
text is read once more, slowly, with every number as it is written. Where there is no such double nothing is read again.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from typing import Any

import orjson

#: The doubles from here on are whole numbers that have lost neighbours: several numbers are read as one of them.
FIRST_INEXACT_DOUBLE = 2.0**53
# Numbers of so many characters that a double may not be them. Begins with what stands before a number, and not with a
# look-behind, which would take eight times as long.
_LONG_NUMBER = re.compile(rb"[:,\[ \t\r\n](-?\d[\d.]{15,}(?:[eE][+-]?\d+)?)")
# How orjson writes whole doubles that have lost neighbours.
_ROUNDED_WHOLE = re.compile(r"\d{16}\.0|\de\+\d")
_LONG_DIGITS = 19


class NumberLiteral(str):
    """A number as it is written in JSON."""

    __slots__ = ()


def parse_lossless(text: str | bytes) -> Any:
    """A JSON value with its numbers as literals.

    Raises:
        ValueError, RecursionError: it is no JSON, or nested more deeply than Python reads.
    """
    return json.loads(text, parse_int=NumberLiteral, parse_float=NumberLiteral)


def dump_lossless(value: Any) -> bytes:
    """A value as JSON, literals as they were.

    Raises:
        TypeError: it is nested too deeply to be written.
    """
    return orjson.dumps(value, default=_literal_fragment, option=orjson.OPT_PASSTHROUGH_SUBCLASS)


def _literal_fragment(value: Any) -> orjson.Fragment:
    if isinstance(value, NumberLiteral):
        return orjson.Fragment(str(value))
    raise TypeError(type(value).__name__)


def number_id_text(literal: str, value: float) -> str:
    """What stands for a number where it is an id: the same for what was read as it was sent, its literal otherwise."""
    return literal if literal.lstrip("-").isdigit() or _is_rounded(literal, value) else orjson.dumps(value).decode()


def _is_rounded(literal: str, value: float) -> bool:
    try:
        return Decimal(literal) != Decimal(repr(value))
    except InvalidOperation:  # an exponent beyond all bounds
        return True


def has_rounded_number(raw: bytes) -> bool:
    """Whether some number in a JSON text is not what orjson reads it as. Also true for some texts in strings."""
    return any(_is_changed(match[1]) for match in _LONG_NUMBER.finditer(raw))


def _is_changed(number: bytes) -> bool:
    if len(number) < _LONG_DIGITS and number.isdigit():
        return False
    try:
        value = orjson.loads(number)
    except orjson.JSONDecodeError:  # in a string
        return False
    # Most doubles come as their shortest digits, which is cheaper to see than to compute with.
    return type(value) is float and orjson.dumps(value) != number and _is_rounded(number.decode(), value)


def may_be_rounded(text: str) -> bool:
    """Whether JSON as orjson wrote it may hold a whole number, an id perhaps, that is not what was sent."""
    # Most texts hold neither, and looking for characters that stand as they are takes a thirtieth of the time.
    return ("e+" in text or ".0" in text) and _ROUNDED_WHOLE.search(text) is not None


def restore_literals(part: dict[str, Any], exact: Any) -> dict[str, Any]:
    """A part of an event with the values that the exact event has at the same places."""
    if type(exact) is not dict:
        return part
    return {
        name: restore_literals(value, exact[name]) if type(value) is dict and name in exact else exact.get(name, value)
        for name, value in part.items()
    }
