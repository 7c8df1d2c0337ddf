"""Substitutes variables in Compose values and env files by Compose's rules.

The rules are those of the Compose specification: `$NAME`, `${NAME}`, and `${NAME…word}` with `:-`, `-`, `:?`, `?`, `:+`
and `+`, where the word may contain variables. `$$` is a dollar sign, and a `$` that begins no variable is kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_NAME = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*")
#: Longer operators first, so that `:-` is not read as part of the word.
_OPERATORS = (":-", ":?", ":+", "-", "?", "+")


class ComposeFileError(ValueError):
    """Raised for a Compose file, or a file it names, that Compose would refuse or that has an unsupported key."""


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """Returns `text` with its variables substituted; an unset variable without default is empty.

    Raises:
        ComposeFileError: a required variable is not set, or the syntax is invalid.
    """
    pieces = []
    position = 0
    while (dollar := text.find("$", position)) >= 0:
        pieces.append(text[position:dollar])
        value, position = _variable(text, dollar, variables)
        pieces.append(value)
    return "".join([*pieces, text[position:]])


def interpolate_tree(value: Any, variables: Mapping[str, str]) -> Any:
    """Substitutes variables in all strings of lists and mappings; keys are kept."""
    match value:
        case str():
            return interpolate(value, variables)
        case Mapping():
            return {key: interpolate_tree(item, variables) for key, item in value.items()}
        case list():
            return [interpolate_tree(item, variables) for item in value]
        case _:
            return value


def _variable(text: str, dollar: int, variables: Mapping[str, str]) -> tuple[str, int]:
    """Returns the value for the `$` at this position, and the position after it."""
    after = dollar + 1
    if text.startswith("$", after):
        return "$", after + 1
    if text.startswith("{", after):
        end = _closing(text, after)
        return _braced(text[after + 1 : end], variables), end + 1
    if name := _NAME.match(text, after):
        return variables.get(name[0], ""), name.end()
    return "$", after


def _closing(text: str, opening: int) -> int:
    """Returns the position of the matching closing brace."""
    depth = 0
    for position in range(opening, len(text)):
        if text[position] == "{" and text[position - 1] == "$":
            depth += 1
        elif text[position] == "}":
            depth -= 1
            if depth == 0:
                return position
    raise ComposeFileError(f"a variable is not closed in {text!r}")


def _braced(inside: str, variables: Mapping[str, str]) -> str:
    name = _NAME.match(inside)
    if name is None:
        raise ComposeFileError(f"${{{inside}}} names no variable")
    rest = inside[name.end() :]
    if not rest:
        return variables.get(name[0], "")
    operator = next((operator for operator in _OPERATORS if rest.startswith(operator)), None)
    if operator is None:
        raise ComposeFileError(f"${{{inside}}}: Compose has no operator {rest!r}")
    word = rest[len(operator) :]
    value = variables.get(name[0])
    is_there = bool(value) if operator.startswith(":") else value is not None
    match operator[-1]:
        case "-":
            return str(value) if is_there else interpolate(word, variables)
        case "+":
            return interpolate(word, variables) if is_there else ""
        case _:
            if not is_there:
                message = interpolate(word, variables)
                raise ComposeFileError(f"required variable {name[0]} is missing a value: {message}")
            return str(value)
