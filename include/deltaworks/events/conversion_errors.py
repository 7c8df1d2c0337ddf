"""Values that do not fit: what is raised of one, and how a value is shown to people."""

from __future__ import annotations

import reprlib
from typing import Any

from deltaworks.events.reasons import ReasonCode

_MAX_SHOWN_CHARACTERS = 80
#: What a value is called in JSON: without it a text of digits reads like a number.
_JSON_NOUNS = {
    str: "the text",
    bool: "the boolean",
    int: "the number",
    float: "the number",
    list: "the array",
    dict: "the object",
}


class ConversionError(Exception):
    """A value that does not fit; `code` says how.

    `path` names the budget it is about; or, of a value inside a column's, where in it: `.items[].count`.
    """

    def __init__(self, code: ReasonCode, detail: str, *, path: str = "") -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.path = path

    def nested_in(self, name: str) -> ConversionError:
        """This misfit, as one of the value that has it under `name`."""
        self.path = f"{name}{self.path}"
        return self


def format_value(value: Any) -> str:
    """A value for people: its first characters. Its depth and its length are bounded before it is written."""
    text = _REPR.repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else text[: _MAX_SHOWN_CHARACTERS - 3] + "..."


def _create_repr() -> reprlib.Repr:
    description = reprlib.Repr()
    description.maxlevel = 8
    description.maxlist = description.maxdict = description.maxtuple = _MAX_SHOWN_CHARACTERS
    # One character more than is shown, so that reprlib never leaves out the middle of what would be shown whole.
    description.maxstring = description.maxlong = description.maxother = 2 * _MAX_SHOWN_CHARACTERS
    return description


_REPR = _create_repr()


def describe_value(value: Any) -> str:
    """A value with what it is: `the text '1'`."""
    noun = _JSON_NOUNS.get(type(value))
    return f"{noun} {format_value(value)}" if noun else format_value(value)


def type_mismatch(value: Any, kind: object) -> ConversionError:
    """The misfit of a value that is not of this kind."""
    return ConversionError(ReasonCode.TYPE_MISMATCH, f"{describe_value(value)} is no {kind}")
