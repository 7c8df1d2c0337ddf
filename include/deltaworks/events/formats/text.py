"""Finds the events in lines of text, which a pattern takes apart; and what every form of lines reads by.

Fields are texts by name; the declared types of columns say what they stand for.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

from deltaworks.events.budget import Budget, FramedEvent
from deltaworks.events.erasure_tombstones import parse_tombstone_line
from deltaworks.events.formats.json_recovery import Malformed

#: What stands for the whole line where lines are read by a pattern.
LINE_FIELD = "line"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def iter_lines(payload: bytes) -> Iterator[str]:
    """The lines with their ends, one after another. Bytes that are no UTF-8 stay what they are, and make a misfit where
    they are used."""
    content = io.BytesIO(payload.removeprefix(_BYTE_ORDER_MARK))
    return io.TextIOWrapper(content, "utf-8", "surrogateescape", newline="")


def encode_line(text: str) -> bytes:
    """What the text was made of."""
    return text.encode("utf-8", "surrogateescape")


def oversized_line(text: str, budget: Budget) -> FramedEvent | None:
    """What stands for a line that is longer than any event: it is not taken apart."""
    if len(text) <= budget.max_event_bytes:
        return None
    raw = encode_line(text)
    return Malformed(raw, f"the line has more than {budget.max_event_bytes} characters"), raw


class LineFramer:
    """Reads each line by a pattern: its named groups are the fields."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern)

    def read_events(self, payload: bytes, budget: Budget) -> Iterator[FramedEvent]:
        """Every line that is not blank, as its fields."""
        for line in iter_lines(payload):
            text = line.rstrip("\r\n")
            if not text.strip():
                continue
            yield oversized_line(text, budget) or self._event(text)

    def _event(self, text: str) -> FramedEvent:
        raw, match = encode_line(text), self._pattern.fullmatch(text)
        if (erased := parse_tombstone_line(text)) is not None:
            return erased, raw
        if match is None:
            return Malformed(raw, "the line does not match the pattern"), raw
        fields = {name: value for name, value in match.groupdict().items() if value}
        return {LINE_FIELD: text} | fields, raw
