"""Finds the JSON values in a payload: one after another, on lines, in arrays, broken in places.

Firehose puts objects one behind the other with nothing between them, so a payload is read as a sequence of JSON
values with optional white space, whatever the producer meant. Two passes:

- The fast pass cuts the payload where an object ends and the next begins, and parses each piece. A complete JSON
  object is no prefix of another, so a piece that parses is exactly the value a careful reader would have found.
- From a piece that does not parse the careful pass reads on, value by value, until it is at a cut again. The piece was
  cut inside a string (then it is read together with its followers), or something in it is broken. What is broken
  becomes one `Malformed` piece, up to the next place from which a complete value can be read that does not look like
  the inside of a broken one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from deltaworks.events.exact_numbers import exact_bytes, exact_value, has_rounded_number

# Begins with a plain character: a look-behind instead would take eight times as long to find.
_BETWEEN_OBJECTS = re.compile(rb"\}[ \t\r\n]*\{")
_WHITE_SPACE = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_INSIDE_A_VALUE = frozenset(',:]}"')
_MAX_RESTARTS = 10_000
_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Malformed:
    """Bytes that are no JSON value, and why."""

    raw: bytes
    detail: str


def values(payload: bytes) -> Iterator[tuple[Any, bytes]]:
    """Every JSON value of the payload with its bytes, in order; elements of a top-level array one by one.

    Yields:
        `(value, raw)`, or `(Malformed, raw)` for what could not be read. Nothing raises.
    """
    payload = payload.removeprefix(_BYTE_ORDER_MARK).strip(_WHITE_SPACE)
    if not payload:
        return
    pieces = _pieces(payload)
    index, count, loads = 0, len(pieces), orjson.loads
    while index < count:
        raw = pieces[index]
        try:
            value = loads(raw)
        except orjson.JSONDecodeError:
            reading = _CarefulReading(pieces, index)
            yield from reading.results
            index = reading.next_index
            continue
        index += 1
        raw = raw.lstrip(_WHITE_SPACE)
        if type(value) is list:
            yield from _elements(value, raw)
        else:
            yield value, raw


def _pieces(payload: bytes) -> list[bytes]:
    """The payload cut wherever an object ends and the next begins.

    White space stays with the object behind it, so that pieces put together again are the payload, byte for byte.
    """
    pieces, start = [], 0
    for between in _BETWEEN_OBJECTS.finditer(payload):
        cut = between.start() + 1
        pieces.append(payload[start:cut])
        start = cut
    pieces.append(payload[start:])
    return pieces


def _elements(value: Any, raw: bytes) -> Iterable[tuple[Any, bytes]]:
    if type(value) is not list:
        return ((value, raw),)
    if not has_rounded_number(raw):
        return [(element, dumped(element, raw)) for element in value]
    try:
        exact = exact_value(raw)
    except (ValueError, RecursionError) as error:
        return ((Malformed(raw, f"numbers in it cannot be told apart: {type(error).__name__}"), raw),)
    return [(element, dumped(sent, raw)) for element, sent in zip(value, exact, strict=True)]


def dumped(element: Any, whole: bytes) -> bytes:
    """An element's bytes; those of the whole array where it is nested too deeply to be written."""
    try:
        return exact_bytes(element)
    except TypeError:
        return whole


class _CarefulReading:
    """Reads value by value from one piece on, taking in its followers while a value goes on in them.

    `results` is what was read, `next_index` the piece where the fast pass can go on.
    """

    def __init__(self, pieces: list[bytes], index: int) -> None:
        self.results: list[tuple[Any, bytes]] = []
        self._pieces = pieces
        self._first = index
        self._end = index
        self._take(1)
        self.next_index = self._read()

    def _take(self, count: int) -> None:
        self._end = min(self._end + count, len(self._pieces))
        self._bytes = b"".join(self._pieces[self._first : self._end])
        # Latin-1 keeps one character per byte, so offsets in the text are offsets in the bytes.
        self._text = self._bytes.decode("latin-1")

    def _read(self) -> int:
        position, restarts = self._behind_white_space(0), 0
        broken: tuple[int, str] | None = None
        while position < len(self._text):
            end, problem = self._value_end(position)
            if end is not None and not (broken and self._is_inside(end)):
                self._note_broken(broken, position)
                broken = None
                self._note_value(self._bytes[position:end])
                position = self._behind_white_space(end)
                at = self._piece_at(end)
                if at is not None:
                    return at
                continue
            broken = broken or (position, problem)
            restarts += 1
            position = self._text.find("{", position + 1)
            if position < 0 or restarts > _MAX_RESTARTS:
                break
        self._note_broken(broken, len(self._text))
        return self._end

    def _value_end(self, position: int) -> tuple[int | None, str]:
        """Where the value at `position` ends, or what is wrong with it."""
        while True:
            try:
                return _decoder.raw_decode(self._text, position)[1], ""
            except RecursionError:
                return None, "nested too deeply"
            except json.JSONDecodeError as error:
                goes_on = error.pos >= len(self._text) or error.msg.startswith("Unterminated string")
                if not goes_on or self._end == len(self._pieces):
                    return None, f"{error.msg} at byte {error.pos - position}"
            # Doubling keeps the work in proportion to what is read in the end.
            self._take(self._end - self._first)

    def _is_inside(self, end: int) -> bool:
        """Whether what follows shows that a value was the inside of a broken one."""
        return self._text[end : end + 1] in _INSIDE_A_VALUE

    def _behind_white_space(self, position: int) -> int:
        while position < len(self._bytes) and self._bytes[position] in _WHITE_SPACE:
            position += 1
        return position

    def _piece_at(self, offset: int) -> int | None:
        """The piece that begins at an offset of the text, if one does."""
        start = 0
        for index in range(self._first, self._end):
            if start >= offset:
                return index if start == offset else None
            start += len(self._pieces[index])
        return self._end if start == offset else None

    def _note_broken(self, broken: tuple[int, str] | None, end: int) -> None:
        if broken is not None:
            raw = self._bytes[broken[0] : end].strip(_WHITE_SPACE)
            self.results.append((Malformed(raw, broken[1]), raw))

    def _note_value(self, raw: bytes) -> None:
        try:
            value = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            self.results.append((Malformed(raw, str(error)), raw))
        else:
            self.results.extend(_elements(value, raw))
