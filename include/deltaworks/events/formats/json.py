"""Reads the JSON values of a payload: concatenated, on lines, in arrays, or partly corrupt.

Firehose concatenates objects without separators, so a payload is parsed as a sequence of JSON values with optional
white space. There are two passes:

- The fast pass cuts the payload at each boundary between two objects, and parses each piece. A complete JSON object is
  never the prefix of another, so a piece that parses is exactly the value that a full parser would find.
- If a piece fails to parse, it was cut inside a string, has commas between its objects, or is corrupt. The recovery
  pass (`json_recovery`) continues from there value by value until the next cut.
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

# The pattern starts with a literal character, because a look-behind would take eight times as long.
_OBJECT_BOUNDARY = re.compile(rb"\}[ \t\r\n]*\{")
_JOINED_OBJECTS = re.compile(rb"\}[ \t\r\n]*+,?[ \t\r\n]*+\{")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
#: Values are counted before parsing only in pieces of at least this size.
_LARGE_BYTES = 1 << 20
_BUFFERED_PIECES = 4096
#: Maximum number of events in a run.
_MAX_RUN_EVENTS = 256
#: Up to this size, finding boundaries by the pattern is faster than by array operations. The pattern is also used for
#: longer white space.
_SMALL_BYTES, _MAX_SPACES = 8_192, 64
#: Bytes that are searched for boundaries per step.
_WINDOW_BYTES = 64 << 10
_OPEN, _CLOSE = b"{}"
_IS_SPACE = np.isin(np.arange(256), list(WHITE_SPACE))


class Decoder(Protocol):
    """Decodes pieces of JSON. `loads` behaves like `orjson.loads`, but may return an instance of a class in `plans`."""

    @property
    def plans(self) -> Container[type]: ...

    def loads(self, raw: bytes) -> Any: ...


def read_events(
    payload: bytes, budget: Budget | None = None, *, decoder: Decoder | None = None
) -> Iterator[FramedEvent]:
    """Yields every JSON value with its bytes, in order. The elements of a top-level array are yielded one by one.

    Args:
        decoder: replaces `orjson.loads`. Events decoded into structs are yielded as `EventRun`.

    Yields:
        Pairs of value and bytes. The value is `Malformed` for unreadable bytes, and `OverBudget` for a piece that would
        take too much memory. An `EventRun` has empty bytes.

    Raises:
        BudgetExceededError: the recovery pass scanned too much.
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
        text = raw.lstrip(WHITE_SPACE)
        if type(value) in decoded and len(text) <= budget.max_event_bytes:
            run.events.append(value)
            run.raws.append(text)
            run.size += len(text)
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
            yield from _split_array(value, text, budget)
        else:
            yield value, text
    if run.raws:
        yield run, b""


def _recover_piece(
    payload: bytes, raw: bytes, refused: Exception, pieces: _Pieces, budget: Budget
) -> Iterator[FramedEvent]:
    """Yields the values in an unreadable piece, and in further pieces if a value continues there; then moves `pieces`
    on.
    """
    if isinstance(refused, BudgetExceededError):
        yield over_budget_event(refused, raw, events=count_objects(raw)), raw
        return
    recovery = JsonRecovery(payload, pieces.end - len(raw), budget, _OBJECT_BOUNDARY)
    for value, raw_value in recovery.read_events():
        yield from _split_array(value, raw_value, budget)
    pieces.skip_to(recovery.end)


class _Pieces:
    """Cuts the payload at object boundaries, thousands of pieces in advance. `end` is the end offset of the last piece.

    Cutting in advance keeps events that are created one after another adjacent in memory, which makes extracting
    columns a fifth faster.
    """

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self.end = 0
        self._restart()

    def _restart(self) -> None:
        self._piece_ends = _piece_ends(self._payload, self.end)
        self._buffered: Iterator[bytes] = iter(())

    def next(self) -> bytes | None:
        """Returns the next piece, or None at the end."""
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
        """Continues at an offset that is not before `end`."""
        while self.end < offset and (raw := next(self._buffered, None)) is not None:
            self.end += len(raw)
        if self.end != offset:
            self.end = offset
            self._restart()


def _piece_ends(payload: bytes, start: int) -> Iterator[int]:
    """Yields the end offsets of the pieces after `start`: each boundary between two objects, and the payload's end.

    White space belongs to the object after it, so the concatenated pieces equal the payload.
    """
    if len(payload) - start < _SMALL_BYTES:
        yield from _piece_ends_by_pattern(payload, start)
        return
    data = np.frombuffer(payload, np.uint8)
    for begin in range(start, len(payload), _WINDOW_BYTES):
        previous = np.flatnonzero(data[begin : begin + _WINDOW_BYTES] == _OPEN) + (begin - 1)
        previous = previous[previous >= start]
        spaces = np.flatnonzero(_IS_SPACE[data[previous]])
        for _ in range(_MAX_SPACES):
            if not len(spaces):
                break
            previous[spaces] -= 1
            spaces = spaces[previous[spaces] >= start]
            spaces = spaces[_IS_SPACE[data[previous[spaces]]]]
        else:
            close = payload.rfind(b"}", start, begin)
            # An object may end before this window and the next one begin in it.
            opens_here = close >= 0 and not payload[close + 1 : begin].strip(WHITE_SPACE)
            yield from _piece_ends_by_pattern(payload, close if opens_here else begin)
            return
        previous = previous[previous >= start]
        yield from (previous[data[previous] == _CLOSE] + 1).tolist()
    yield len(payload)


def _piece_ends_by_pattern(payload: bytes, start: int) -> Iterator[int]:
    for boundary in _OBJECT_BOUNDARY.finditer(payload, start):
        yield boundary.start() + 1
    yield len(payload)


def _split_array(value: Any, raw: bytes, budget: Budget) -> Iterator[FramedEvent]:
    """Yields the elements of an array with their bytes; read one by one if its numbers cannot be kept exactly."""
    if type(value) is not list:
        yield value, raw
        return
    sent = value
    if has_rounded_number(raw):
        try:
            sent = parse_lossless(raw)
        except (ValueError, RecursionError):
            yield from JsonRecovery(raw, 0, budget, _OBJECT_BOUNDARY, split_arrays=True).read_events()
            return
    for element, lossless in zip(value, sent, strict=True):
        yield element, dump_element(lossless, raw)


def count_objects(raw: bytes) -> int:
    """Estimates the number of objects in bytes that were not parsed, by the boundaries between objects."""
    return 1 + sum(1 for _ in _JOINED_OBJECTS.finditer(raw))


def dump_element(element: Any, array_bytes: bytes) -> bytes:
    """Serializes an array element; returns the bytes of the complete array if the element is nested too deeply."""
    try:
        return dump_lossless(element)
    except TypeError:
        return array_bytes
