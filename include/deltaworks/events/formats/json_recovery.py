"""Recovers JSON values after a syntax error, until the payload can be cut at object boundaries again.

Corrupt bytes become one `Malformed` event. It ends at the next offset at which a complete value can be parsed, unless
that value seems to be part of the corrupt one. The brackets of a corrupt value are scanned once: the values that
enclose the error are corrupt too, so parsing is not tried again at any of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from deltaworks.events.budget import PARSE_ATTEMPT_BYTES, Budget, BudgetExceededError, FramedEvent

WHITE_SPACE = b" \t\r\n"
_VALUE_CONTINUATIONS = frozenset(',:]}"')
#: A string (which may be unterminated) or a bracket.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[{}\[\]]', re.DOTALL)
_NOT_WHITE_SPACE = re.compile(r"[^ \t\r\n]")
#: Possible start of an object: a bracket and the beginning of its first name, without line breaks. Matching no other
#: bracket keeps the search linear.
_OBJECT_START = re.compile(
    r'\{(?=[ \t\r\n]*+(?:\}|"(?:[^"\\\x00-\x1f]|\\.)*+(?:"[ \t\r\n]*+(?::|\Z)|\\?\Z)|\Z))', re.DOTALL
)
#: Maximum number of open brackets that are recorded per corrupt value.
_MAX_OPEN_BRACKETS = 100_000
_decoder = json.JSONDecoder()


class _BudgetExemptText(str):
    """A text that does not count lines: `json` errors contain a line number, and computing it would scan all preceding
    text.
    """

    __slots__ = ()

    def count(self, *_: object) -> int:
        return 0

    def rfind(self, *_: object) -> int:
        return -1


@dataclass(frozen=True, slots=True)
class Malformed:
    """Bytes that cannot be parsed as an event of the declared format, and the reason."""

    raw: bytes
    detail: str


@dataclass(frozen=True, slots=True)
class _ParseError:
    """Why no value can be parsed, and the position of the error; None if the parser gives no position."""

    detail: str
    error_position: int | None


class JsonRecovery:
    """Reads values one by one, from an unreadable piece into the following pieces, while a value continues there.

    Args:
        start: offset of the piece.
        object_boundary: matches from the last byte of an object to the start of the next.

    After all values are consumed, `end` is the offset at which the fast pass can continue.
    """

    def __init__(self, payload: bytes, start: int, budget: Budget, object_boundary: re.Pattern[bytes]) -> None:
        self.end = start
        self._payload = payload
        self._start = start
        self._budget = budget
        self._object_boundary = object_boundary
        self._window_end = start
        # Latin-1 has one character per byte, so offsets in the text equal offsets in the bytes from `start`.
        self._text = _BudgetExemptText()
        self._broken_openings: set[int] = set()

    def read_events(self) -> Iterator[FramedEvent]:
        """Yields the values with their bytes, and `Malformed` for the bytes between them.

        Raises:
            BudgetExceededError: max_scans, max_decoded_bytes; `unread` starts at the first unread byte.
        """
        position, broken, unread = 0, "", 0
        try:
            self._extend_window()
            position = unread = self._skip_white_space(0)
            while 0 <= position < len(self._text):
                end, problem = self._find_value_end(position)
                if end is None or (broken and self._text[end : end + 1] in _VALUE_CONTINUATIONS):
                    broken = broken or problem.detail
                    position = self._next_attempt(position, end, problem)
                    continue
                yield from self._malformed(broken, unread, position)
                broken = ""
                yield parse_value(self._slice(position, end))
                self.end = self._start + end
                if self._is_at_piece_end():
                    return
                position = unread = self._skip_white_space(end)
        except BudgetExceededError as over:
            over.unread = self._payload[self._start + unread :]
            raise
        yield from self._malformed(broken, unread, len(self._text))
        self.end = self._window_end

    def _extend_window(self) -> None:
        """Doubles the window, and extends it to the next boundary so that no number or name is split."""
        min_end = max(self._window_end, 2 * self._window_end - self._start - 1)
        boundary = self._object_boundary.search(self._payload, min_end)
        end = boundary.start() + 1 if boundary else len(self._payload)
        self._budget.count_scanned(end - self._window_end)
        text = self._payload[self._start : end].decode("latin-1")
        self._window_end = end
        self._budget.check_json_memory(text)
        self._text = _BudgetExemptText(text)

    def _find_value_end(self, position: int) -> tuple[int | None, _ParseError]:
        """Returns the end of the value at `position`, or the parse error."""
        while True:
            try:
                end = _decoder.raw_decode(self._text, position)[1]
            except RecursionError:
                self._budget.count_scanned(PARSE_ATTEMPT_BYTES)
                return None, _ParseError("nested too deeply", None)
            except json.JSONDecodeError as error:
                may_continue = error.pos >= len(self._text) or error.msg.startswith("Unterminated string")
                self._budget.count_scanned(
                    PARSE_ATTEMPT_BYTES + (len(self._text) if may_continue else error.pos) - position
                )
                if not may_continue or self._window_end == len(self._payload):
                    return None, _ParseError(f"{error.msg} at byte {error.pos - position}", error.pos)
                # Doubling keeps the work proportional to the bytes read.
                self._extend_window()
            except ValueError:  # a number with thousands of digits, which Python rejects
                self._budget.count_scanned(PARSE_ATTEMPT_BYTES)
                return None, _ParseError("a number with too many digits", None)
            else:
                self._budget.count_scanned(end - position)
                return end, _ParseError("", end)

    def _next_attempt(self, position: int, end: int | None, problem: _ParseError) -> int:
        """Returns the next position at which to parse, or -1. Values that enclose the error are skipped."""
        if end is not None:
            return self._find_opening(end)
        next_position = self._scan_brackets(position, problem.error_position)
        attempt = self._find_opening(position + 1 if next_position is None else next_position)
        while attempt in self._broken_openings:
            self._broken_openings.discard(attempt)
            attempt = self._find_opening(attempt + 1)
        return attempt

    def _find_opening(self, position: int) -> int:
        """Returns the next position at which an object may begin, or -1."""
        opening = _OBJECT_START.search(self._text, position)
        return -1 if opening is None else opening.start()

    def _scan_brackets(self, position: int, until: int | None) -> int | None:
        """Records the brackets that are open at `until` in the value at `position`. If there are too many, returns the
        value's end.
        """
        while True:
            end, open_brackets = len(self._text) if until is None else until, []
            for token in _TOKEN.finditer(self._text, position, end):
                at, mark = token.start(), self._text[token.start()]
                if mark in "{[":
                    open_brackets.append(at)
                elif mark in "}]":
                    open_brackets.pop()
                if (until is None and not open_brackets) or len(open_brackets) > _MAX_OPEN_BRACKETS:
                    self._budget.count_scanned(at - position)
                    return at + 1
            self._budget.count_scanned(end - position)
            if until is not None or self._window_end == len(self._payload):
                # Recorded so that these values are not scanned up to here again.
                self._broken_openings.update(open_brackets[1:])
                return None
            self._extend_window()

    def _is_at_piece_end(self) -> bool:
        """Returns whether the last value ends at an object boundary, so that the fast pass can continue."""
        return self.end == self._window_end or self._object_boundary.match(self._payload, self.end - 1) is not None

    def _skip_white_space(self, position: int) -> int:
        text = _NOT_WHITE_SPACE.search(self._text, position)
        return text.start() if text else len(self._text)

    def _malformed(self, detail: str, begin: int, end: int) -> Iterator[FramedEvent]:
        if detail:
            raw = self._slice(begin, end).strip(WHITE_SPACE)
            yield Malformed(raw, detail), raw

    def _slice(self, begin: int, end: int) -> bytes:
        return self._payload[self._start + begin : self._start + end]


def parse_value(raw: bytes) -> FramedEvent:
    """Parses the bytes of a value. Returns the value, or `Malformed`, with the bytes."""
    try:
        return orjson.loads(raw), raw
    except orjson.JSONDecodeError as error:
        return Malformed(raw, str(error)), raw
