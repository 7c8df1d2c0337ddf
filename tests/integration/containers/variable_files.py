"""Reads files of variables (`env_file`, `.env`) by Compose's rules.

Unquoted and double-quoted values have variables substituted, from the shell first and then from earlier lines. Single
quotes are literal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tests.integration.containers.interpolation import ComposeFileError, interpolate

_LINE = re.compile(r"^\s*(?:export\s+)?([_a-zA-Z][\w.-]*)\s*(?:=(.*))?$", re.DOTALL)
_COMMENT = re.compile(r"\s#.*$")
_SINGLE = re.compile(r"'((?:[^'\\]|\\.)*)'\s*(?:#.*)?$")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"\s*(?:#.*)?$')
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def read_variables(path: Path, shell: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a file. A name without `=` is taken from the shell, and left out if the shell has none.

    Raises:
        ComposeFileError: the file does not exist, or a line is invalid.
    """
    if not path.is_file():
        raise ComposeFileError(f"env file {path} not found")
    variables: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            raise ComposeFileError(f"{path}:{number}: {line.split('=')[0]!r} is no name of a variable")
        name, value = match.groups()
        if value is not None:
            variables[name] = _value(value.strip(), {**variables, **shell}, place=f"{path}:{number}")
        elif name in shell:
            variables[name] = shell[name]
    return variables


def _value(text: str, variables: Mapping[str, str], *, place: str) -> str:
    if text.startswith("'"):
        if (quoted := _SINGLE.match(text)) is None:
            raise ComposeFileError(f"{place}: a quote is not closed")
        return quoted[1].replace("\\'", "'")
    if text.startswith('"'):
        if (quoted := _DOUBLE.match(text)) is None:
            raise ComposeFileError(f"{place}: a quote is not closed")
        return interpolate(re.sub(r"\\(.)", _escaped, quoted[1]), variables)
    if text.startswith("#"):
        return ""
    return interpolate(_COMMENT.sub("", text), variables)


def _escaped(match: re.Match[str]) -> str:
    # An escaped dollar sign begins no variable.
    return "$$" if match[1] == "$" else _ESCAPES.get(match[1], match[1])
