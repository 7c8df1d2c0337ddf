"""Finds the JSON values in a payload: one after another, on lines, in arrays, broken in places.

Firehose puts objects one behind the other with nothing between them, so a payload is read as a sequence of JSON
values with optional white space, whatever the producer meant. Two passes, of which each gives its values as it goes:

- The fast pass cuts the payload where an object ends and the next begins, and parses each piece. A complete JSON
  object is no prefix of another, so a piece that parses is exactly the value a careful reader would have found.
- From a piece that does not parse the careful pass (`json_recovery`) reads on, value by value, until it is at a cut
  again. The piece was cut inside a string (then it is read together with its followers), or something in it is broken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import orjson

from deltaworks.events.budget import Budget, Event, Exceeded, beyond
from deltaworks.events.exact_numbers import exact_bytes, exact_value, has_rounded_number
from deltaworks.events.formats.json_recovery import WHITE_SPACE, Malformed, Recovery

__all__ = ["Malformed", "dumped", "values"]

# Begins with a plain character: a look-behind instead would take eight times as long to find.
_BETWEEN_OBJECTS = re.compile(rb"\}[ \t\r\n]*\{")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
#: Pieces up to this length are parsed without a look at how many values are in them.
_LARGE_BYTES = 1 << 20
_PIECES_AHEAD = 4096


def values(payload: bytes, budget: Budget | None = None) -> Iterator[Event]:
    """Every JSON value of the payload with its bytes, in order; elements of a top-level array one by one.

    Yields:
        `(value, raw)`; `(Malformed, raw)` for what could not be read, `(OverBudget, raw)` for a piece that would take
        too much memory.

    Raises:
        Exceeded: the careful pass has looked at too much.
    """
    payload = payload.removeprefix(_BYTE_ORDER_MARK).strip(WHITE_SPACE)
    budget = budget or Budget(size=len(payload))
    pieces, loads = _Pieces(payload), orjson.loads
    while (raw := pieces.next()) is not None:
        try:
            if len(raw) > _LARGE_BYTES:
                budget.hold_json(raw)
            value = loads(raw)
        except orjson.JSONDecodeError:
            recovery = Recovery(payload, pieces.end - len(raw), budget, _BETWEEN_OBJECTS)
            for broken, of_broken in recovery.values():
                yield from _elements(broken, of_broken)
            pieces.skip_to(recovery.end)
            continue
        except Exceeded as over:
            yield beyond(over, raw), raw
            continue
        bare = raw.lstrip(WHITE_SPACE)
        if type(value) is list:
            yield from _elements(value, bare)
        else:
            yield value, bare


class _Pieces:
    """The payload cut where objects end, thousands of pieces ahead of the one that is read.

    Values that are made one behind the other lie together in memory, and columns are taken from them a fifth faster
    than where the bytes of a piece lie between any two. `end` is where the last piece that was given ends.
    """

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self.end = 0
        self._restart()

    def _restart(self) -> None:
        self._cuts = _cuts(self._payload, self.end)
        self._ahead: Iterator[bytes] = iter(())

    def next(self) -> bytes | None:
        """The next piece; None at the end."""
        raw = next(self._ahead, None)
        if raw is None:
            ends = list(islice(self._cuts, _PIECES_AHEAD))
            starts = [self.end, *ends]
            self._ahead = iter([self._payload[start:end] for start, end in zip(starts, ends, strict=False)])
            raw = next(self._ahead, None)
        if raw:
            self.end += len(raw)
        return raw or None

    def skip_to(self, offset: int) -> None:
        """Give the pieces from an offset on that is not before `end`."""
        while self.end < offset and (raw := next(self._ahead, None)) is not None:
            self.end += len(raw)
        if self.end != offset:
            self.end = offset
            self._restart()


def _cuts(payload: bytes, start: int) -> Iterator[int]:
    """Where pieces end from `start` on: wherever an object ends and the next begins, and at the end.

    White space stays with the object behind it, so that pieces put together again are the payload, byte for byte.
    """
    for between in _BETWEEN_OBJECTS.finditer(payload, start):
        yield between.start() + 1
    yield len(payload)


def _elements(value: Any, raw: bytes) -> Iterator[Event]:
    if type(value) is not list:
        yield value, raw
        return
    sent = value
    if has_rounded_number(raw):
        try:
            sent = exact_value(raw)
        except (ValueError, RecursionError) as error:
            yield Malformed(raw, f"numbers in it cannot be told apart: {type(error).__name__}"), raw
            return
    for element, as_sent in zip(value, sent, strict=True):
        yield element, dumped(as_sent, raw)


def dumped(element: Any, whole: bytes) -> bytes:
    """An element's bytes; those of the whole array where it is nested too deeply to be written."""
    try:
        return exact_bytes(element)
    except TypeError:
        return whole
