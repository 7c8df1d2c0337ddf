"""Edits JSON texts without parsing and re-serializing them, so the remaining content is unchanged.

Re-serializing would change 1.10 to 1.1 and drop duplicate names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import orjson

# Strings match as one token, so brackets inside them do not count. Possessive, so valid text is not scanned twice.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\],:]', re.DOTALL)


def dump_json(value: Any) -> str:
    """Serializes a value as JSON. Uses ASCII escapes if it contains half a surrogate pair or a number beyond 64
    bits."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)


#: Numbers that may exceed the range of floating point: exponents of three digits, or very many digits.
_MAY_OVERFLOW = re.compile(r"[eE]\+?0*[1-9]\d\d|(?<!\d)\d{200}")


def dump_exactly(value: Any, sources: Iterable[str]) -> str:
    """Serializes a value parsed from JSON texts, as `dump_json` does.

    Raises:
        ValueError: it contains a number beyond the range of floating point, which would become null.
    """
    if any(_MAY_OVERFLOW.search(source) for source in sources):
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    return dump_json(value)


def remove_member(text: str, name: str) -> str:
    """Returns the text of a JSON object without members of that name; everything else is unchanged."""
    members, start, depth, key = [], text.index("{") + 1, 0, ""
    for token in _TOKEN.finditer(text):
        kind = token[0][0]
        if kind in "}]":
            depth -= 1
        if (depth == 1 and kind == ",") or depth == 0:
            if key and json.loads(key) != name:
                members.append(text[start : token.start()].strip())
            start, key = token.end(), ""
        elif depth == 1 and kind == '"' and not key:
            key = token[0]
        if kind in "{[":
            depth += 1
            if depth == 1:
                start, key = token.end(), ""
    return "{" + ",".join(members) + "}"
