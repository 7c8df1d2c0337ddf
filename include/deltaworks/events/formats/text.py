"""Reads text lines as events with a regular expression; also line functions for all line-based formats.

Fields are texts by name; they are parsed according to the table's column types.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

from deltaworks.events.budget import Budget, FramedEvent
from deltaworks.events.erasure_tombstones import parse_tombstone_line
from deltaworks.events.formats.json_recovery import Malformed

#: Field with the complete line.
LINE_FIELD = "line"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def iter_lines(payload: bytes) -> Iterator[str]:
    """Yields the lines with their line breaks. Invalid UTF-8 becomes surrogates, which fail when the field is
    converted.
    """
    content = io.BytesIO(payload.removeprefix(_BYTE_ORDER_MARK))
    return io.TextIOWrapper(content, "utf-8", "surrogateescape", newline="")


def encode_line(text: str) -> bytes:
    """Returns the original bytes of a line from `iter_lines`."""
    return text.encode("utf-8", "surrogateescape")


def oversized_line(text: str, budget: Budget) -> FramedEvent | None:
    """Returns a `Malformed` event if a line is longer than an event may be, otherwise None."""
    if len(text) <= budget.max_event_bytes:
        return None
    raw = encode_line(text)
    return Malformed(raw, f"the line has more than {budget.max_event_bytes} characters"), raw


class LineFramer:
    """Parses each line with a regular expression whose named groups are the fields."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern)

    def read_events(self, payload: bytes, budget: Budget) -> Iterator[FramedEvent]:
        """Yields the fields of every line that is not blank."""
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
