"""Variables in the values of a Compose file and in files of variables, as Compose puts them in.

The rules are those of the Compose specification: `$NAME`, `${NAME}`, and `${NAME…word}` with `:-`, `-`, `:?`, `?`, `:+`
and `+`, where the word may hold variables itself. `$$` is a dollar sign, and a `$` that begins no variable stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_NAME = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*")
#: The longer ones first, so that `:-` is not read as a name followed by something else.
_OPERATORS = (":-", ":?", ":+", "-", "?", "+")


class ComposeFileError(ValueError):
    """A Compose file, or a file it names, that Compose would refuse, or that holds what is not read here."""


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """`text` with its variables put in; one that is not set and has no default is empty.

    Raises:
        ComposeFileError: a variable that has to be set is not, or the syntax is not Compose's.
    """
    pieces = []
    position = 0
    while (dollar := text.find("$", position)) >= 0:
        pieces.append(text[position:dollar])
        value, position = _variable(text, dollar, variables)
        pieces.append(value)
    return "".join([*pieces, text[position:]])


def interpolate_tree(value: Any, variables: Mapping[str, str]) -> Any:
    """All texts of lists and mappings with their variables put in; keys stay as they are."""
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
    """What stands for the `$` at this place, and where the text goes on."""
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
    """Where the brace ends that opens here; braces of variables within are passed over."""
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
