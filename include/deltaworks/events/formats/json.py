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
from collections.abc import Callable, Container, Iterator
from itertools import islice
from typing import Any, Protocol

import numpy as np
import orjson

from deltaworks.events.budget import Budget, BudgetExceededError, EventRun, FramedEvent, over_budget_event
from deltaworks.events.formats.json_recovery import WHITE_SPACE, JsonRecovery, Malformed
from deltaworks.events.lossless_numbers import dump_lossless, has_rounded_number, parse_lossless

__all__ = ["Malformed", "dump_element", "read_events"]

# Begins with a plain character: a look-behind instead would take eight times as long to find.
_OBJECT_BOUNDARY = re.compile(rb"\}[ \t\r\n]*\{")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
#: Pieces up to this length are parsed without a look at how many values are in them.
_LARGE_BYTES = 1 << 20
_BUFFERED_PIECES = 4096
#: Decoded events that are given at once.
_MAX_RUN_EVENTS = 256
#: Up to so many bytes the pattern finds cuts sooner than arrays do; and only it finds them behind longer white space.
_SMALL_BYTES, _MAX_SPACES = 8_192, 64
#: Bytes that are looked through for cuts at a time.
_WINDOW_BYTES = 64 << 10
_OPEN, _CLOSE = b"{}"
_IS_SPACE = np.isin(np.arange(256), list(WHITE_SPACE))


class Decoder(Protocol):
    """Decodes pieces: `loads` does what `orjson.loads` does, but what is of a class in `plans` is decoded."""

    @property
    def plans(self) -> Container[type]: ...

    def loads(self, raw: bytes) -> Any: ...


def read_events(
    payload: bytes, budget: Budget | None = None, *, decoder: Decoder | None = None
) -> Iterator[FramedEvent]:
    """Every JSON value of the payload with its bytes, in order; elements of a top-level array one by one.

    Args:
        decoder: reads pieces in place of `orjson.loads`. What it decodes comes as a `Run`, in order with the others.

    Yields:
        `(value, raw)`; `(Malformed, raw)` for what could not be read, `(OverBudget, raw)` for a piece that would take
        too much memory; `(Run, b"")`.

    Raises:
        Exceeded: the careful pass has looked at too much.
    """
    payload = payload.removeprefix(_BYTE_ORDER_MARK).strip(WHITE_SPACE)
    budget = budget or Budget(size=len(payload))
    if decoder is None:
        return _read_events(payload, budget, orjson.loads, {})
    return _read_events(payload, budget, decoder.loads, decoder.plans)


def _read_events(
    payload: bytes, budget: Budget, loads: Callable[[bytes], Any], decoded: Container[type]
) -> Iterator[FramedEvent]:
    pieces, run = _Pieces(payload), EventRun()
    while (raw := pieces.next()) is not None:
        refused: Exception | None = None
        value = None
        try:
            if len(raw) > _LARGE_BYTES:
                budget.check_json_memory(raw)
            value = loads(raw)
        except (orjson.JSONDecodeError, BudgetExceededError) as error:
            refused = error
        bare = raw.lstrip(WHITE_SPACE)
        if type(value) in decoded and len(bare) <= budget.max_event_bytes:
            run.events.append(value)
            run.raws.append(bare)
            run.size += len(bare)
            if len(run.raws) < _MAX_RUN_EVENTS and run.size < _LARGE_BYTES:
                continue
            yield run, b""
            run = EventRun()
            continue
        if run.raws:
            yield run, b""
            run = EventRun()
        if refused is not None:
            yield from _recover_piece(payload, raw, refused, pieces, budget)
        elif type(value) is list:
            yield from _split_array(value, bare)
        else:
            yield value, bare
    if run.raws:
        yield run, b""


def _recover_piece(
    payload: bytes, raw: bytes, refused: Exception, pieces: _Pieces, budget: Budget
) -> Iterator[FramedEvent]:
    """What stands for a piece that could not be read; goes on behind it, or behind what it goes on in."""
    if isinstance(refused, BudgetExceededError):
        yield over_budget_event(refused, raw), raw
        return
    recovery = JsonRecovery(payload, pieces.end - len(raw), budget, _OBJECT_BOUNDARY)
    for broken, of_broken in recovery.read_events():
        yield from _split_array(broken, of_broken)
    pieces.skip_to(recovery.end)


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
        self._piece_ends = _piece_ends(self._payload, self.end)
        self._buffered: Iterator[bytes] = iter(())

    def next(self) -> bytes | None:
        """The next piece; None at the end."""
        raw = next(self._buffered, None)
        if raw is None:
            ends = list(islice(self._piece_ends, _BUFFERED_PIECES))
            starts = [self.end, *ends]
            self._buffered = iter([self._payload[start:end] for start, end in zip(starts, ends, strict=False)])
            raw = next(self._buffered, None)
        if raw:
            self.end += len(raw)
        return raw or None

    def skip_to(self, offset: int) -> None:
        """Give the pieces from an offset on that is not before `end`."""
        while self.end < offset and (raw := next(self._buffered, None)) is not None:
            self.end += len(raw)
        if self.end != offset:
            self.end = offset
            self._restart()


def _piece_ends(payload: bytes, start: int) -> Iterator[int]:
    """Where pieces end from `start` on: wherever an object ends and the next begins, and at the end.

    White space stays with the object behind it, so that pieces put together again are the payload, byte for byte.
    """
    if len(payload) - start < _SMALL_BYTES:
        yield from _piece_ends_by_pattern(payload, start)
        return
    data = np.frombuffer(payload, np.uint8)
    for begin in range(start, len(payload), _WINDOW_BYTES):
        before = np.flatnonzero(data[begin : begin + _WINDOW_BYTES] == _OPEN) + (begin - 1)
        before = before[before >= start]
        spaces = np.flatnonzero(_IS_SPACE[data[before]])
        for _ in range(_MAX_SPACES):
            if not len(spaces):
                break
            before[spaces] -= 1
            spaces = spaces[before[spaces] >= start]
            spaces = spaces[_IS_SPACE[data[before[spaces]]]]
        else:
            close = payload.rfind(b"}", start, begin)
            # An object that ends right before may have its follower here.
            opens_here = close >= 0 and not payload[close + 1 : begin].strip(WHITE_SPACE)
            yield from _piece_ends_by_pattern(payload, close if opens_here else begin)
            return
        before = before[before >= start]
        yield from (before[data[before] == _CLOSE] + 1).tolist()
    yield len(payload)


def _piece_ends_by_pattern(payload: bytes, start: int) -> Iterator[int]:
    for between in _OBJECT_BOUNDARY.finditer(payload, start):
        yield between.start() + 1
    yield len(payload)


def _split_array(value: Any, raw: bytes) -> Iterator[FramedEvent]:
    if type(value) is not list:
        yield value, raw
        return
    sent = value
    if has_rounded_number(raw):
        try:
            sent = parse_lossless(raw)
        except (ValueError, RecursionError) as error:
            yield Malformed(raw, f"numbers in it cannot be told apart: {type(error).__name__}"), raw
            return
    for element, as_sent in zip(value, sent, strict=True):
        yield element, dump_element(as_sent, raw)


def dump_element(element: Any, whole: bytes) -> bytes:
    """An element's bytes; those of the whole array where it is nested too deeply to be written."""
    try:
        return dump_lossless(element)
    except TypeError:
        return whole
