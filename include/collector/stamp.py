"""The server's time in an event, without the event being written anew.

What a parser makes of an event and writes again is not what was sent: whole numbers beyond 64 bits become doubles, 1.10
becomes 1.1, and of a name that comes twice one value is gone. So the time is put into the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import orjson

#: The field that says when the collector took the event.
TIME_FIELD = "eventTime"
_BYTE_ORDER_MARK = "\ufeff"
_WHITE_SPACE = " \t\r\n"
# Strings are taken whole, so that no bracket inside of one counts. Possessive: a valid text needs no second look.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\],:]', re.DOTALL)


def stamped(body: str, at: int) -> str | None:
    """The event with `eventTime` as `at`, all else as it was sent; None where the body is no JSON object.

    Where the event has that field already its value is replaced, wherever it stands and however often: a name that came
    twice would mean the one value to some readers and the other value to others.
    """
    body = body.removeprefix(_BYTE_ORDER_MARK)
    try:
        event = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if type(event) is not dict:
        return None
    if TIME_FIELD in event:
        return _replaced(body, str(at))
    start = body.index("{") + 1
    return f'{body[:start]}"{TIME_FIELD}":{at}{"," if event else ""}{body[start:]}'


def _replaced(body: str, value: str) -> str:
    pieces, end = [], 0
    for start, stop in _values_of(body, TIME_FIELD):
        pieces += [body[end:start], value]
        end = stop
    return "".join([*pieces, body[end:]])


def _values_of(body: str, name: str) -> Iterator[tuple[int, int]]:
    """Where the values of a field begin and end. `body` is a JSON object; how deep it is nested does not matter."""
    depth, begun, key = 0, -1, ""
    for token in _TOKEN.finditer(body):
        text, first = token[0], token[0][0]
        if depth == 1 and begun < 0 and first == '"':
            key = text
        elif depth == 1 and begun < 0 and first == ":":
            begun = token.end()
        elif depth == 1 and begun >= 0 and first in ",}":
            if orjson.loads(key) == name:
                value = body[begun : token.start()]
                start = begun + len(value) - len(value.lstrip(_WHITE_SPACE))
                yield start, start + len(value.strip(_WHITE_SPACE))
            begun = -1
        depth += (first in "{[") - (first in "}]")
