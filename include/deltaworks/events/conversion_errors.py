"""Conversion errors, and the text form of values in messages."""

from __future__ import annotations

import reprlib
from typing import Any

from deltaworks.events.reasons import ReasonCode

_MAX_SHOWN_CHARACTERS = 80
#: Distinguishes a string of digits from a number.
_JSON_NOUNS = {
    str: "the text",
    bool: "the boolean",
    int: "the number",
    float: "the number",
    list: "the array",
    dict: "the object",
}


class ConversionError(Exception):
    """Raised for a value that cannot be converted; `code` gives the reason.

    For an exceeded budget, `path` is its name. Otherwise it is the location in the column's value: `.items[].count`.
    """

    def __init__(self, code: ReasonCode, detail: str, *, path: str = "") -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.path = path

    def nested_in(self, name: str) -> ConversionError:
        """Prefixes the error's path with the name of the enclosing field, and returns the error."""
        self.path = f"{name}{self.path}"
        return self


def format_value(value: Any) -> str:
    """Returns the first characters of a value for messages. Large and deep values are cut before they are formatted."""
    text = _REPR.repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else text[: _MAX_SHOWN_CHARACTERS - 3] + "..."


def _create_repr() -> reprlib.Repr:
    description = reprlib.Repr()
    description.maxlevel = 8
    description.maxlist = description.maxdict = description.maxtuple = _MAX_SHOWN_CHARACTERS
    # Longer than the shown length, so reprlib never elides the middle of a value that fits.
    description.maxstring = description.maxlong = description.maxother = 2 * _MAX_SHOWN_CHARACTERS
    return description


_REPR = _create_repr()


def describe_value(value: Any) -> str:
    """Describes a value and its JSON type in messages, such as `the text '1'`."""
    noun = _JSON_NOUNS.get(type(value))
    return f"{noun} {format_value(value)}" if noun else format_value(value)


def type_mismatch(value: Any, kind: object) -> ConversionError:
    """Returns the error for a value whose type differs from `kind`."""
    return ConversionError(ReasonCode.TYPE_MISMATCH, f"{describe_value(value)} is not a valid {kind}")
