"""Cuts a stream of JSON where one value ends and the next begins, without ever holding all of it.

Values come as a reader of objects takes them: on lines, one behind the other, pretty-printed, in arrays. A cut is made
only where everything up to it reads as whole values, so that no event is ever in two pieces, and pieces put together
again are the stream, byte for byte. An array that is longer than a piece becomes several arrays. A value that is
longer, a wrapper of many events for example, stays whole.
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
#: Where one value of a sequence may end and the next begin: objects with nothing between them, anything on lines.
_VALUE_BOUNDARY = re.compile(rb"\}[ \t\r\n]*(?=\{)|[\}\]\"\w][ \t\r]*\n[ \t\r\n]*(?=[\{\[\"\w-])")
#: Places are looked for from the end of a window backwards, so much at a time.
_BLOCK_BYTES, _OVERLAP_BYTES = 64 << 10, 1 << 10
_MAX_CUT_ATTEMPTS = 16
#: What is looked at twice and reads as nothing is no place to cut at.
_SCAN_BUDGET = BudgetSpec(max_scans=2)
_NOT_WHITE_SPACE = re.compile(r"[^ \t\r\n]")
_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Piece:
    """What becomes one object. `unreadable` values are among `events`; both are None where they cannot be counted."""

    data: bytes
    events: int | None = None
    unreadable: int | None = None


@dataclass(frozen=True, slots=True)
class _Cut:
    piece: Piece
    rest: bytes


def json_pieces(read: Callable[[int], bytes], *, target_bytes: int, max_value_bytes: int) -> Iterator[Piece]:
    """Pieces of about `target_bytes`; longer ones where a value is longer.

    Args:
        read: the next so many bytes of the stream, fewer only at its end.
        longest_bytes: no value is waited for that is longer: it is cut wherever that is, as no reader takes it.
    """
    buffer, at_end, window = b"", False, target_bytes
    while True:
        while not at_end and len(buffer) <= window:
            missing = window + 1 - len(buffer)
            part = read(missing)
            at_end = len(part) < missing
            buffer = buffer + part if buffer else part.removeprefix(_BYTE_ORDER_MARK)
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
            # As much again where no value has ended: the work stays in proportion to what is read.
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
    """Places in the window to cut at, the last first."""
    end = window
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        matches = _VALUE_BOUNDARY.finditer(buffer, max(0, start - _OVERLAP_BYTES), end + 1)
        yield from reversed([match.end() for match in matches if start < match.end() <= end])
        end = start


def _piece(data: bytes, *, complete_only: bool = False) -> Piece:
    """The piece with its events counted; `whole`: not counted where it does not end with a value that can be read."""
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
    """The elements within the window of an array that goes on behind it, as an array; the rest as one too."""
    # Latin-1 keeps one character per byte, so offsets in the text are offsets in the bytes.
    text = buffer[:window].decode("latin-1")
    opening = _skip_white_space(text, 0)
    if text[opening : opening + 1] != "[":
        return None
    position, elements, end, following = opening + 1, 0, 0, 0
    while True:
        try:
            _, after = _decoder.raw_decode(text, _skip_white_space(text, position))
        except (ValueError, RecursionError):
            break
        position = _skip_white_space(text, after)
        if text[position : position + 1] != ",":
            break
        elements, end, following = elements + 1, after, position + 1
        position = following
    if not elements:
        return None
    return _Cut(Piece(buffer[:end] + b"]", elements, 0), b"[" + buffer[following:])


def _skip_white_space(text: str, position: int) -> int:
    match = _NOT_WHITE_SPACE.search(text, position)
    return match.start() if match else len(text)
