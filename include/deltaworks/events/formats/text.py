"""Finds the events in lines of text, which a pattern takes apart; and what every form of lines reads by.

Fields are texts by name; the declared types of columns say what they stand for.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

from deltaworks.events.formats.json import Malformed

#: What stands for the whole line where lines are read by a pattern.
LINE_FIELD = "line"
_BYTE_ORDER_MARK = "\ufeff"


def lines_of(payload: bytes) -> list[str]:
    """The lines with their ends. Bytes that are no UTF-8 stay what they are, and make a misfit where they are used."""
    text = payload.decode("utf-8", "surrogateescape").removeprefix(_BYTE_ORDER_MARK)
    return list(io.StringIO(text, newline=""))


def bytes_of(text: str) -> bytes:
    """What the text was made of."""
    return text.encode("utf-8", "surrogateescape")


class LineFramer:
    """Reads each line by a pattern: its named groups are the fields."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern)

    def values(self, payload: bytes) -> Iterator[tuple[Any, bytes]]:
        """Every line that is not blank, as its fields."""
        for line in lines_of(payload):
            text = line.rstrip("\r\n")
            if not text.strip():
                continue
            raw, match = bytes_of(text), self._pattern.fullmatch(text)
            if match is None:
                yield Malformed(raw, "the line does not match the pattern"), raw
                continue
            fields = {name: value for name, value in match.groupdict().items() if value}
            yield {LINE_FIELD: text} | fields, raw
