"""JSON texts that keep what was sent: members are taken out of a text, not out of what a parser makes of it.

What is parsed and written again is not what was sent: 1.10 becomes 1.1, and of a name that comes twice one is gone.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

# Strings are taken whole, so that no bracket inside of one counts. Possessive: a valid text needs no second look.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\],:]', re.DOTALL)


def dump_json(value: Any) -> str:
    """A value as JSON, in ASCII where it holds half a surrogate pair or a number beyond 64 bits."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)


def remove_member(text: str, name: str) -> str:
    """The text of a JSON object without its members of that name, however often they come; all else as it stands."""
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
