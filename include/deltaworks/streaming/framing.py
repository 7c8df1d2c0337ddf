"""Finds the JSON values in a payload: one after another, on lines, in arrays, broken in places.

Firehose puts objects one behind the other with nothing between them, so a payload is read as a sequence of JSON
values with optional white space, whatever the producer meant. Two passes:

- The fast pass cuts the payload where an object ends and the next begins, and parses each piece. A complete JSON
  object is no prefix of another, so a piece that parses is exactly the value a careful reader would have found.
- A piece that does not parse is given to the careful pass. It was cut inside a string (then it parses together with
  its followers), or something in it is broken. What is broken becomes one `Malformed` piece, up to the next place
  from which a complete value can be read that does not look like the inside of a broken one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

_BETWEEN_OBJECTS = re.compile(rb"(?<=\})[ \t\r\n]*(?=\{)")
_WHITE_SPACE = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_INSIDE_A_VALUE = frozenset(b',:]}"')
_CHUNK_PIECES = 2048
_MAX_JOINED_PIECES = 64
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
    pieces = _BETWEEN_OBJECTS.split(payload)
    index = 0
    while index < len(pieces):
        chunk = pieces[index : index + _CHUNK_PIECES]
        try:
            loaded = list(map(orjson.loads, chunk))
        except orjson.JSONDecodeError:
            end = index + len(chunk)
            while index < end:
                found, index = _one_piece(pieces, index)
                yield from found
            continue
        index += len(chunk)
        for value, raw in zip(loaded, chunk, strict=True):
            if isinstance(value, list):
                yield from _elements(value, raw)
            else:
                yield value, raw


def _one_piece(pieces: list[bytes], index: int) -> tuple[Iterable[tuple[Any, bytes]], int]:
    """What the piece at `index` holds, and the index to go on at."""
    try:
        return _elements(orjson.loads(pieces[index]), pieces[index]), index + 1
    except orjson.JSONDecodeError as error:
        joined = _join(pieces, index)
        if joined is None:
            return _careful(pieces[index], str(error)), index + 1
        value, raw, after = joined
        return _elements(value, raw), after


def _elements(value: Any, raw: bytes) -> Iterator[tuple[Any, bytes]]:
    if isinstance(value, list):
        for element in value:
            yield element, _dumped(element, raw)
    else:
        yield value, raw


def _dumped(element: Any, whole: bytes) -> bytes:
    """An element's bytes; those of the whole array where it is nested too deeply to be written."""
    try:
        return orjson.dumps(element)
    except TypeError:
        return whole


def _join(pieces: list[bytes], first: int) -> tuple[Any, bytes, int] | None:
    """The value that pieces from `first` on make together, its bytes, and the next index."""
    joined = pieces[first]
    for end in range(first + 1, min(first + _MAX_JOINED_PIECES, len(pieces))):
        joined += pieces[end]
        try:
            return orjson.loads(joined), joined, end + 1
        except orjson.JSONDecodeError:
            continue
    return None


def _careful(piece: bytes, detail: str) -> Iterator[tuple[Any, bytes]]:
    # Latin-1 keeps one character per byte, so offsets in the text are offsets in the bytes.
    text = piece.decode("latin-1")
    position = 0
    while position < len(piece):
        end = _value_end(text, position)
        if end is None:
            start = _next_start(text, position + 1)
            raw = piece[position:start].strip(_WHITE_SPACE)
            yield Malformed(raw, detail), raw
        else:
            start = end
            raw = piece[position:end]
            yield from _parsed(raw)
        position = start
        while position < len(piece) and piece[position] in _WHITE_SPACE:
            position += 1


def _parsed(raw: bytes) -> Iterator[tuple[Any, bytes]]:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        yield Malformed(raw, str(error)), raw
    else:
        yield from _elements(value, raw)


def _value_end(text: str, start: int) -> int | None:
    try:
        return _decoder.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return None


def _next_start(text: str, start: int) -> int:
    """Where reading can go on: a brace from which a value is complete and is not part of an outer one."""
    for _ in range(_MAX_RESTARTS):
        start = text.find("{", start)
        if start < 0:
            return len(text)
        end = _value_end(text, start)
        if end is not None and (end == len(text) or ord(text[end]) not in _INSIDE_A_VALUE):
            return start
        start += 1
    return len(text)
