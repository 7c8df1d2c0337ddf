"""Splits a stream of JSON between values, with bounded memory.

Accepts the layouts that the object reader accepts: one value per line, concatenated, pretty-printed, or arrays. A split
position is used only if everything before it parses as complete values. Therefore each event is in one piece, and the
concatenated pieces equal the stream byte for byte. An array longer than a piece becomes several arrays. A longer single
value, such as a wrapper of many events, is not split.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from deltaworks.events.budget import Budget, BudgetExceededError, OverBudget
from deltaworks.events.formats.json import read_events
from deltaworks.events.formats.json_recovery import WHITE_SPACE, Malformed
from deltaworks.specs.sources.payload import BudgetSpec

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
#: Matches possible boundaries of values: between adjacent objects, or between any values on separate lines.
_VALUE_BOUNDARY = re.compile(rb"\}[ \t\r\n]*(?=\{)|[\}\]\"\w][ \t\r]*\n[ \t\r\n]*(?=[\{\[\"\w-])")
#: Split positions are searched backwards from the end of a window, one block at a time.
_BLOCK_BYTES, _OVERLAP_BYTES = 64 << 10, 1 << 10
_MAX_CUT_ATTEMPTS = 16
#: A position that does not parse after two scans is not used.
_SCAN_BUDGET = BudgetSpec(max_scans=2)
_NOT_WHITE_SPACE = re.compile(r"[^ \t\r\n]")
_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Piece:
    """The content of one landed object. `events` includes the `unreadable` values; both are None if they cannot be
    counted.
    """

    data: bytes
    events: int | None = None
    unreadable: int | None = None


@dataclass(frozen=True, slots=True)
class _Cut:
    piece: Piece
    rest: bytes


def json_pieces(read: Callable[[int], bytes], *, target_bytes: int, max_value_bytes: int) -> Iterator[Piece]:
    """Yields pieces of about `target_bytes`. A value that is longer makes a longer piece.

    Args:
        read: returns up to the given number of bytes of the stream, fewer only at its end.
        max_value_bytes: a longer value is cut at any position, because no reader accepts it.
    """
    buffer, at_end, window = b"", False, target_bytes
    while True:
        while not at_end and len(buffer) <= window:
            needed = window + 1 - len(buffer)
            chunk = read(needed)
            at_end = len(chunk) < needed
            buffer = buffer + chunk if buffer else chunk.removeprefix(_BYTE_ORDER_MARK)
        if at_end and len(buffer) <= target_bytes:
            break
        cut = _sequence_cut(buffer, window) or _array_cut(buffer, window)
        if cut is not None:
            yield cut.piece
            buffer, window = cut.rest, target_bytes
        elif window >= len(buffer):
            break
        elif window >= max_value_bytes:
            yield _piece(buffer)
            buffer, window = b"", target_bytes
        else:
            # Doubling the window keeps the work proportional to the input.
            window *= 2
    if buffer.strip(WHITE_SPACE):
        yield _piece(buffer)


def _sequence_cut(buffer: bytes, window: int) -> _Cut | None:
    for number, end in enumerate(_cut_positions(buffer, window)):
        if number == _MAX_CUT_ATTEMPTS:
            break
        piece = _piece(buffer[:end], complete_only=True)
        if piece.events is not None:
            return _Cut(piece, buffer[end:])
    return None


def _cut_positions(buffer: bytes, window: int) -> Iterator[int]:
    """Yields possible split positions in the window, from the last to the first."""
    end = window
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        matches = _VALUE_BOUNDARY.finditer(buffer, max(0, start - _OVERLAP_BYTES), end + 1)
        yield from reversed([match.end() for match in matches if start < match.end() <= end])
        end = start


def _piece(data: bytes, *, complete_only: bool = False) -> Piece:
    """Returns a piece with the number of its events. With `complete_only`, does not count if the last value cannot be
    read.
    """
    events = unreadable = 0
    readable = True
    try:
        for value, _ in read_events(data, Budget(_SCAN_BUDGET, size=len(data))):
            events += 1
            readable = not isinstance(value, Malformed | OverBudget)
            unreadable += not readable
    except BudgetExceededError:
        return Piece(data)
    return Piece(data) if complete_only and not readable else Piece(data, events, unreadable)


def _array_cut(buffer: bytes, window: int) -> _Cut | None:
    """Splits an array that is longer than the window: its complete elements become one array, the rest another."""
    # Latin-1 has one character per byte, so text offsets are byte offsets.
    text = buffer[:window].decode("latin-1")
    opening = _skip_white_space(text, 0)
    if text[opening : opening + 1] != "[":
        return None
    position, elements, end, next_position = opening + 1, 0, 0, 0
    while True:
        try:
            _, after = _decoder.raw_decode(text, _skip_white_space(text, position))
        except (ValueError, RecursionError):
            break
        position = _skip_white_space(text, after)
        if text[position : position + 1] != ",":
            break
        elements, end, next_position = elements + 1, after, position + 1
        position = next_position
    if not elements:
        return None
    return _Cut(Piece(buffer[:end] + b"]", elements, 0), b"[" + buffer[next_position:])


def _skip_white_space(text: str, position: int) -> int:
    match = _NOT_WHITE_SPACE.search(text, position)
    return match.start() if match else len(text)
