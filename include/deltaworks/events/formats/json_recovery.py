"""Recovers JSON values after a syntax error, until the payload can be cut at object boundaries again.

Values may be separated by white space, commas, record separators (RFC 7464) and byte order marks. An array of objects
that cannot be parsed is read element by element, so that a corrupt element costs no other.

Corrupt bytes become one `Malformed` event. It ends where its brackets are closed and a separator follows, or at the
next offset at which a complete value can be parsed, unless that value seems to be part of the corrupt one. The brackets
of a corrupt value are scanned once: the values that enclose the error are corrupt too, so parsing is not tried again at
any of them.
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
_CONTINUES_OBJECT = frozenset(":}")
_WORD = re.compile(r"[\w.+-]")
#: A string (which may be unterminated) or a bracket.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[{}\[\]]', re.DOTALL)
_NOT_WHITE_SPACE = re.compile(r"[^ \t\r\n]")
_SPACE = r"(?:[ \t\r\n\x1e]|\xef\xbb\xbf)*+"
_BEFORE_VALUES, _BETWEEN_VALUES = re.compile(_SPACE), re.compile(f"{_SPACE}(?:,{_SPACE})?+")
#: Start of an array of objects. Scalars may precede the first object, and other text such as `[INFO]` does not match.
_OBJECT_ARRAY = re.compile(
    r'\[(?:[ \t\r\n]*+(?:[\w.+-]*+|"(?:[^"\\]|\\.)*+")[ \t\r\n]*+,)*+[ \t\r\n]*+(?=\{)', re.DOTALL
)
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
    """Bytes that cannot be parsed as an event of the declared format, and the reason.

    Attributes:
        events: number of events that the bytes seem to contain.
    """

    raw: bytes
    detail: str
    events: int = 1


@dataclass(frozen=True, slots=True)
class _ParseError:
    """Why no value can be parsed, and the position of the error; None if the parser gives no position."""

    detail: str
    error_position: int | None


class _BracketScan:
    """Follows the brackets of a corrupt value from its start, to tell elements from values nested in the corrupt one.

    Attributes:
        events: number of events that start between `start` and the end of the scan.
        hidden_events: the same, inside strings that a missing quote has joined to the next object.
    """

    #: A string, a bracket, a comma, or the end of a line before another line. Strings contain no line breaks, so that
    #: an unterminated string affects its line only.
    _TOKEN = re.compile(r'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"?|[{}\[\],]|\n(?=[ \t\r]*+[^ \t\r\n])')
    #: End of a string that contains the end of an object and the start of the next, because a quote is missing.
    _OBJECT_BOUNDARY = re.compile(r'\}[ \t\r]*+,?[ \t\r]*+\{"\Z')
    #: What follows an element or object that ended: a comma, an array, a record separator, or nothing.
    _FOLLOWS_VALUE = frozenset({",", "[", "\x1e", ""})

    def __init__(self, text: str, start: int, *, in_array: bool) -> None:
        self.events = int(text[start] != "{")
        self.hidden_events = 0
        self._at = start
        self._in_array = in_array
        self._string_end = 0
        self._open: list[str] = []
        self._open_arrays = 0

    def advance(self, text: str, until: int) -> tuple[int | None, int]:
        """Scans up to `until`. Returns where the corrupt value ends before it, or None, and the number of bytes."""
        begin = self._at
        while self._at < until and len(self._open) <= _MAX_OPEN_BRACKETS:
            token = self._TOKEN.search(text, self._at)
            if token is None or token.start() >= until:
                self._at = until
                break
            self._at = token.end()
            if (end := self._end_at(text, token)) is not None:
                return end, self._at - begin
        return None, max(0, self._at - begin)

    def separates(self, text: str, position: int) -> bool:
        """Returns whether an object at `position`, up to which was scanned, cannot be nested in the corrupt value."""
        return self._at <= position and self._is_unnested(text, position)

    def encloses(self, position: int, end: int) -> bool:
        """Returns whether a complete string, up to which was scanned, contains this text."""
        return self._string_end > end > position

    def _is_unnested(self, text: str, position: int) -> bool:
        if len(self._open) > _MAX_OPEN_BRACKETS:
            return False
        if not self._open:
            return True
        before = position - 1
        while text[before] in " \t\r\n":
            before -= 1
        return self._open[-1] == "{" and text[before] != ":"

    def _end_at(self, text: str, token: re.Match[str]) -> int | None:
        mark = text[token.start()]
        if mark == '"':
            self._string_end = token.end() if token.end() - token.start() > 1 and token.group()[-1] == '"' else 0
            self.hidden_events += self._OBJECT_BOUNDARY.search(token.group()) is not None
        elif mark in "{[":
            self._push(text, token.start(), mark)
        elif mark in "}]":
            return self._close(text, token.start(), mark)
        elif not self._open and mark == ",":
            return token.start() if self._in_array else None
        elif not self._open and mark == "\n":
            begin = _BEFORE_VALUES.match(text, token.end())
            self.events += begin is not None and _character_at(text, begin.end()) != "{"
        return None

    def _push(self, text: str, at: int, mark: str) -> None:
        self.events += mark == "{" and self._is_unnested(text, at)
        self._open.append(mark)
        self._open_arrays += mark == "["

    def _close(self, text: str, at: int, mark: str) -> int | None:
        """Closes a bracket, and those inside it that are still open. Returns the end of the value if it is complete."""
        opening = "{" if mark == "}" else "["
        count = self._open_arrays if opening == "[" else len(self._open) - self._open_arrays
        if not count:
            return at if opening == "[" and self._in_array else None
        while True:
            closed = self._open.pop()
            self._open_arrays -= closed == "["
            if closed == opening:
                break
        if self._open:
            return None
        following = _character_at(text, _next_text(text, at + 1))
        return at + 1 if following in self._FOLLOWS_VALUE or (following == "]" and self._in_array) else None


def _next_text(text: str, position: int) -> int:
    """Returns the next position that has no white space, or the end."""
    match = _NOT_WHITE_SPACE.search(text, position)
    return match.start() if match else len(text)


def _character_at(text: str, position: int) -> str:
    """Returns the character, or an empty text at the end."""
    return text[position : position + 1]


class JsonRecovery:
    """Reads values one by one, from an unreadable piece into the following pieces, while a value continues there.

    Args:
        start: offset of the piece.
        object_boundary: matches from the last byte of an object to the start of the next.
        split_arrays: reads arrays by element even if they can be parsed.

    After all values are consumed, `end` is the offset at which the fast pass can continue.
    """

    def __init__(
        self,
        payload: bytes,
        start: int,
        budget: Budget,
        object_boundary: re.Pattern[bytes],
        *,
        split_arrays: bool = False,
    ) -> None:
        self.end = start
        self._payload = payload
        self._start = start
        self._budget = budget
        self._object_boundary = object_boundary
        self._window_end = start
        # Latin-1 has one character per byte, so offsets in the text equal offsets in the bytes from `start`.
        self._text = _BudgetExemptText()
        self._broken_openings: set[int] = set()
        self._split_arrays = split_arrays
        self._in_array = False

    def read_events(self) -> Iterator[FramedEvent]:
        """Yields the values with their bytes, and `Malformed` for the bytes between them.

        Raises:
            BudgetExceededError: max_scans, max_decoded_bytes; `unread` starts at the first unread byte.
        """
        position, unread = 0, 0
        broken, scan = "", None
        try:
            self._extend_window()
            position = unread = self._skip(_BEFORE_VALUES, 0)
            while 0 <= position < len(self._text):
                if scan is None and self._in_array and (mark := self._text[position]) in "],":
                    if mark == ",":
                        yield Malformed(b",", "an element is missing"), b","
                    self._in_array = mark == ","
                    position = unread = self._skip(_BEFORE_VALUES if self._in_array else _BETWEEN_VALUES, position + 1)
                    continue
                end, problem = self._find_value_end(position)
                if scan is None and self._opens_array(position, end):
                    self._in_array = True
                    position = unread = self._skip(_BEFORE_VALUES, position + 1)
                elif end is not None and self._is_separate(position, end, scan):
                    yield from self._malformed(broken, unread, position, scan)
                    broken, scan = "", None
                    yield parse_value(self._slice(position, end))
                    self.end = self._start + end
                    if self._is_at_piece_end():
                        yield from self._unclosed_array()
                        return
                    position = unread = self._skip(_BETWEEN_VALUES, end)
                else:
                    broken = broken or problem.detail or "text follows without a separator"
                    scan = scan or _BracketScan(self._text, position, in_array=self._in_array)
                    position = self._next_attempt(position, end, problem)
                    value_end = self._scan_value_end(scan, position)
                    if value_end is not None:
                        scan.hidden_events = 0
                        yield from self._malformed(broken, unread, value_end, scan)
                        broken, scan = "", None
                        position = unread = self._skip(_BETWEEN_VALUES, value_end)
        except BudgetExceededError as over:
            over.unread = self._payload[self._start + unread :]
            raise
        self.end = self._window_end
        yield from self._malformed(broken, unread, len(self._text), scan)
        if not broken:
            yield from self._unclosed_array()

    def _opens_array(self, position: int, end: int | None) -> bool:
        """Returns whether an array of objects starts here that must be read by element."""
        if self._in_array or self._text[position] != "[":
            return False
        if end is None:
            return _OBJECT_ARRAY.match(self._text, position) is not None
        return self._split_arrays or type(parse_value(self._slice(position, end))[0]) is not list

    def _is_separate(self, position: int, end: int, scan: _BracketScan | None) -> bool:
        """Returns whether a value can be an event of its own, and not a part of the corrupt text around it."""
        following = _character_at(self._text, end)
        if scan is None:
            return not self._in_array or self._text[position] in '{["' or _WORD.match(following) is None
        if scan.encloses(position, end):
            return False
        next_mark = _character_at(self._text, _next_text(self._text, end))
        if next_mark and next_mark in ",]":
            return scan.separates(self._text, position)
        return next_mark not in _CONTINUES_OBJECT and following not in _VALUE_CONTINUATIONS

    def _scan_value_end(self, scan: _BracketScan, position: int) -> int | None:
        """Scans up to the next attempt. Returns the end of the corrupt value if it ends before that."""
        end, scanned = scan.advance(self._text, len(self._text) if position < 0 else position)
        self._budget.count_scanned(scanned)
        return end

    def _unclosed_array(self) -> Iterator[FramedEvent]:
        if self._in_array and self.end == len(self._payload):
            yield Malformed(b"[", "the array is not closed, so elements may be missing"), b"["

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

    def _skip(self, separators: re.Pattern[str], position: int) -> int:
        skipped = separators.match(self._text, position)
        return position if skipped is None else skipped.end()

    def _malformed(self, detail: str, begin: int, end: int, scan: _BracketScan | None) -> Iterator[FramedEvent]:
        if detail:
            raw = self._slice(begin, end).strip(WHITE_SPACE)
            yield Malformed(raw, detail, events=max(1, scan.events + scan.hidden_events) if scan else 1), raw

    def _slice(self, begin: int, end: int) -> bytes:
        return self._payload[self._start + begin : self._start + end]


def parse_value(raw: bytes) -> FramedEvent:
    """Parses the bytes of a value. Returns the value, or `Malformed`, with the bytes."""
    try:
        return orjson.loads(raw), raw
    except orjson.JSONDecodeError as error:
        return Malformed(raw, str(error)), raw
