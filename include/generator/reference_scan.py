"""A slow, simple reader of concatenated JSON objects, to verify the fast reader and the expected results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from generator.wire import RECORD_START

_RECORD_START = RECORD_START.decode()
_DECODER = json.JSONDecoder()
#: Surrogates that replace invalid UTF-8 bytes.
_INVALID_UTF8 = re.compile("[\udc80-\udcff]")


@dataclass(frozen=True, slots=True)
class Piece:
    """A byte range of a file: a complete JSON value, or unreadable bytes (`is_readable` false)."""

    raw: bytes
    value: Any
    is_readable: bool


FindResumePosition = Callable[[str, int], int]


def find_record_start(text: str, after: int) -> int:
    """Returns the position of the next request, which starts with `{"resource":`."""
    position = text.find(_RECORD_START, after)
    return len(text) if position < 0 else position


def find_next_object(text: str, after: int) -> int:
    """Returns the next position at which a complete JSON object starts, whether it is a request or not."""
    while (after := text.find("{", after)) >= 0:
        try:
            _DECODER.raw_decode(text, after)
        except ValueError:
            after += 1
        else:
            return after
    return len(text)


def scan(data: bytes, resume: FindResumePosition = find_record_start) -> Iterator[Piece]:
    """Yields the pieces of a decompressed file in order; skips whitespace between them."""
    # decoding maps invalid UTF-8 bytes to lone surrogates, which no generated JSON contains, and encoding maps them
    # back
    text = data.decode("utf-8", "surrogateescape")
    position = 0
    while position < len(text):
        if text[position] in " \t\r\n":
            position += 1
            continue
        try:
            value, end = _DECODER.raw_decode(text, position)
        except ValueError:
            end = resume(text, position + 1)
            yield Piece(_to_bytes(text[position:end]), None, is_readable=False)
        else:
            raw = _to_bytes(text[position:end])
            is_readable = _INVALID_UTF8.search(text, position, end) is None
            yield Piece(raw, value if is_readable else None, is_readable)
        position = end


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
