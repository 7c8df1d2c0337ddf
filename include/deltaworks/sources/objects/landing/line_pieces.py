"""Splits a stream of text between lines, or CSV between records; each piece begins with the field names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from deltaworks.events.budget import Budget
from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.formats.csv import CsvFramer
from deltaworks.events.formats.json_recovery import Malformed
from deltaworks.events.formats.registry import create_framer
from deltaworks.sources.objects.landing.json_pieces import Piece
from deltaworks.specs.sources.payload import PayloadSpec

_FIELDS_LINE = re.compile(rb"(?:\A|[\r\n])(#Fields:[^\r\n]*)")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
#: The reader's budget is per object. Splitting only has to bound the search for a closing quote.
_UNBOUNDED_SIZE = 1 << 50


def line_pieces(
    read: Callable[[int], bytes], source: PayloadSpec, *, target_bytes: int, max_line_bytes: int
) -> Iterator[Piece]:
    """Yields pieces of complete lines, of at most `target_bytes` unless a line is longer.

    For format `tsv`, each piece begins with the `#Fields:` line that applies to it.

    Args:
        read: returns up to the given number of bytes of the stream, fewer only at its end.
        max_line_bytes: a longer line is cut at any position, because no reader accepts it.
    """
    has_named_fields = source.format == "tsv" and not source.tsv.columns
    count = _piece_factory(source)
    buffer, at_end, fields, window = b"", False, b"", target_bytes
    while True:
        if not at_end and len(buffer) < window:
            chunk = read(window - len(buffer))
            at_end = len(buffer) + len(chunk) < window
            buffer = buffer + chunk if buffer else chunk.removeprefix(_BYTE_ORDER_MARK)
        end = _line_end(buffer, target_bytes, at_end=at_end)
        if not end and not at_end and len(buffer) < max_line_bytes:
            window = target_bytes + 2 * len(buffer)
            continue
        data = buffer[: end or len(buffer)]
        buffer, window = buffer[len(data) :], target_bytes
        if data.strip():
            yield count(fields + data if fields and not data.startswith(b"#Fields:") else data)
        for match in _FIELDS_LINE.finditer(data) if has_named_fields else ():
            fields = match.group(1) + b"\n"
        if at_end and not buffer:
            return


def _line_end(buffer: bytes, target_bytes: int, *, at_end: bool) -> int:
    """Returns the length of the complete lines within the target, or of the first line if it is longer; 0 without a
    line end.
    """
    if at_end and len(buffer) <= target_bytes:
        return len(buffer)
    return buffer.rfind(b"\n", 0, target_bytes) + 1 or buffer.find(b"\n") + 1


def csv_pieces(lines: Iterator[str], source: PayloadSpec, *, target_bytes: int) -> Iterator[Piece]:
    """Yields pieces of complete records, each with the header; quoted multi-line fields are not split."""
    records = CsvFramer(source.csv).read_records(
        lines, Budget(size=_UNBOUNDED_SIZE, max_event_bytes=source.max_event_bytes)
    )
    count = _piece_factory(source)
    header = b""
    if source.csv.header:
        header = next((raw + b"\n" for _, raw in records), b"")
    parts, size = [header], len(header)
    for _, raw in records:
        if len(parts) > 1 and size + len(raw) >= target_bytes:
            yield count(b"".join(parts))
            parts, size = [header], len(header)
        parts.append(raw + b"\n")
        size += len(raw) + 1
    if len(parts) > 1:
        yield count(b"".join(parts))


def _piece_factory(source: PayloadSpec) -> Callable[[bytes], Piece]:
    """Returns a function that makes a piece of lines. It counts events in the same way as the stream."""
    events_of = create_framer(source)

    def count(data: bytes) -> Piece:
        events = unreadable = 0
        try:
            for value, _ in events_of(data):
                events += 1
                unreadable += isinstance(value, Malformed)
        except ConversionError:
            return Piece(data)
        return Piece(data, events, unreadable)

    return count
