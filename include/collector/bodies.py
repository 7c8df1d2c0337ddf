"""Parses request bodies into events. Malformed content becomes an event without a value and does not affect other
events.

A body is decompressed up to a limit and split with the standard library's JSON scanner, which returns where a value
ends. So the text of an event is passed on byte for byte, and a number of thirty digits is not changed.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

import zstandard

_BYTE_ORDER_MARK: Final = "\ufeff"
# `str.splitlines` would also split at characters that JSON allows inside strings.
_LINE_END = re.compile(r"\r\n|\n|\r")
_SPACE = re.compile(r"[ \t\r\n]*")
#: A complete string, a bracket or a comma. Possessive, so valid text is not scanned twice.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\],]', re.DOTALL)
#: Maximum number of events per request. Each gets a stamp; SDKs send at most a thousand.
MAX_EVENTS: Final = 20_000
_OPENERS: Final = {"}": "{", "]": "["}
#: Maximum number of tokens scanned for the end of malformed events; after that the rest is one malformed event.
_MAX_RECOVERY_TOKENS: Final = 200_000
_MAX_ZSTD_WINDOW_BYTES: Final = 8 << 20
_FIRST_WINDOW_BYTES, _WINDOW_BYTES = 512, 64 << 10
ENCODINGS: Final = frozenset({b"", b"identity", b"gzip", b"x-gzip", b"zstd"})


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")


_decoder: Any = json.JSONDecoder(parse_constant=_reject_constant)
_scan: Callable[[str, int], tuple[Any, int]] = _decoder.scan_once
#: Exceptions of the scanner for invalid or too deeply nested values.
_SCAN_ERRORS = (ValueError, StopIteration, RecursionError)


_T = TypeVar("_T")
#: Work in steps, between which other requests are handled; returns its result.
Steps = Generator[None, None, _T]
#: Events per step, which take a few milliseconds.
EVENTS_PER_STEP: Final = 128


def run_steps(steps: Steps[_T]) -> _T:
    """Runs all steps and returns the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class TooLargeError(Exception):
    """A body exceeds the decompressed size limit, its number of events, or what they may become."""


class SentEvent(NamedTuple):
    """An event as it was sent; `value` is None if the text is not a JSON object."""

    text: str
    value: dict[str, Any] | None


@dataclass(slots=True)
class RequestBody:
    """The content of a request: events, and batch-level fields (`context` as it was sent).

    Attributes:
        stamped_bytes: size of all events with their stamps, once they have them.
    """

    events: list[SentEvent] = field(default_factory=list)
    context: str | None = None
    sent_at: Any = None
    write_key: str | None = None
    stamped_bytes: int = 0


def inflate_body(body: bytes, encoding: bytes, *, max_bytes: int, max_members: int = 1000) -> bytes:
    """Decompresses a body. Returns the content before the damage if the body is damaged.

    Never decompresses more than `max_bytes` plus one, and takes time linear in the body's size.

    Raises:
        TooLargeError: the content is longer, or has more gzip members than `max_members`.
    """
    if encoding in (b"", b"identity"):
        content = body
    elif encoding == b"zstd":
        content = _zstd(body, max_bytes)
    else:
        content = _gzip(body, max_bytes, max_members)
    if len(content) > max_bytes:
        raise TooLargeError
    if not content and body:
        return b"base64:" + base64.b64encode(body)
    return content


def _gzip(body: bytes, max_bytes: int, max_members: int) -> bytes:
    """Decompresses concatenated gzip members.

    Input is passed in windows, because a decoder copies the input after a member's end.
    """
    chunks: list[bytes] = []
    view, start, remaining_bytes, members = memoryview(body), 0, max_bytes + 1, 0
    while start < len(body) and remaining_bytes > 0:
        members += 1
        if members > max_members:
            raise TooLargeError
        member = zlib.decompressobj(wbits=31)
        member_start, member_chunks, window = start, len(chunks), _FIRST_WINDOW_BYTES
        while not member.eof and start < len(body) and remaining_bytes > 0:
            piece = view[start : start + window]
            try:
                chunks.append(member.decompress(piece, remaining_bytes))
            except zlib.error:
                remaining_bytes += sum(map(len, chunks[member_chunks:]))
                del chunks[member_chunks:]
                return b"".join([*chunks, _decompress_damaged(body[member_start:], remaining_bytes)])
            remaining_bytes -= len(chunks[-1])
            start, window = start + len(piece), min(_WINDOW_BYTES, 4 * window)
        start -= len(member.unused_data)
    return b"".join(chunks)


def _decompress_damaged(body: bytes, max_bytes: int) -> bytes:
    """Returns the content of a damaged member before the damage, by feeding it in small steps."""
    member, chunks = zlib.decompressobj(wbits=31), []
    try:
        for start in range(0, len(body), 256):
            chunk = member.decompress(body[start : start + 256], max_bytes)
            chunks.append(chunk)
            max_bytes -= len(chunk)
            if max_bytes <= 0:
                break
    except zlib.error:
        pass
    return b"".join(chunks)


def _zstd(body: bytes, max_bytes: int) -> bytes:
    reader = zstandard.ZstdDecompressor(max_window_size=_MAX_ZSTD_WINDOW_BYTES).stream_reader(
        body, read_across_frames=True
    )
    chunks: list[bytes] = []
    remaining_bytes = max_bytes + 1
    try:
        while remaining_bytes > 0 and (chunk := reader.read(min(remaining_bytes, 64 << 10))):
            chunks.append(chunk)
            remaining_bytes -= len(chunk)
    except zstandard.ZstdError:
        pass
    return b"".join(chunks)


def decode_text(content: bytes) -> str:
    """Decodes UTF-8. Invalid bytes become hexadecimal backslash escapes, which JSON does not allow, so events cannot
    contain them.
    """
    return content.decode("utf-8", "backslashreplace").removeprefix(_BYTE_ORDER_MARK)


def parse_single(text: str) -> RequestBody:
    """Parses a body that is one event."""
    event = _parse_event(text)
    value = event.value or {}
    return RequestBody([event], None, value.get("sentAt"), _optional_text(value.get("writeKey")))


def parse_events(text: str, *, json_lines: bool, max_events: int = MAX_EVENTS) -> Steps[RequestBody]:
    """Parses a body that is an event, an array of events, or events on lines, in steps.

    Args:
        json_lines: every line is an event, regardless of its content. Otherwise a body of several values is also parsed
            as lines.
    """
    if not json_lines:
        event = _parse_event(text)
        if event.value is not None:
            return RequestBody([event], None, None, _optional_text(event.value.get("writeKey")))
        start = _SPACE.match(text).end()  # type: ignore[union-attr]
        if text.startswith("[", start):
            return (yield from _parse_array(text, start, max_events))
        if "\n" not in text.strip():
            return RequestBody([event])
    texts = [line for line in _LINE_END.split(text) if line.strip()]
    if len(texts) > max_events:
        raise TooLargeError
    events: list[SentEvent] = []
    for line in texts:
        events.append(_parse_event(line))
        if not len(events) % EVENTS_PER_STEP:
            yield
    keys = (_optional_text(event.value.get("writeKey")) for event in events if event.value is not None)
    return RequestBody(events or [SentEvent(text, None)], None, None, next((key for key in keys if key), None))


def _parse_array(text: str, start: int, max_events: int) -> Steps[RequestBody]:
    body, elements = RequestBody(), _ArrayReader(text, start, max_events)
    body.events = yield from elements.read()
    rest = text[elements.end :].strip()
    if rest:
        body.events.append(SentEvent(rest, None))
    return body


def parse_batch(text: str, *, max_events: int = MAX_EVENTS) -> Steps[RequestBody]:
    """Parses a body with `batch`, `context`, `sentAt` and `writeKey`, as SDKs of Segment and RudderStack send it, in
    steps.

    A malformed tail becomes one unreadable event; the events before it are parsed.
    """
    body, has_batch = RequestBody(), False
    at = 0
    try:
        for name, start in (members := _ObjectReader(text)):
            at = start
            if name == "batch" and text.startswith("[", start):
                elements = _ArrayReader(text, start, max_events)
                body.events, has_batch = (yield from elements.read()), True
                members.at = at = elements.end
                continue
            value, members.at = _scan(text, start)
            at = members.at
            if name == "context" and isinstance(value, dict):
                body.context = text[start:at]
            elif name == "sentAt":
                body.sent_at = value
            elif name == "writeKey":
                body.write_key = _optional_text(value)
        rest = text[members.at :].strip() if has_batch else text
    except _SCAN_ERRORS:
        rest = text[at:].strip() if has_batch else text
    if rest:
        body.events.append(SentEvent(rest, None))
    return body


class _ObjectReader:
    """Yields name and value position of each member of a JSON object's text. The caller sets `at` to the end of each
    value.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0

    def __iter__(self) -> Iterator[tuple[str, int]]:
        text = self._text
        at = _skip_space(text, 0)
        if not text.startswith("{", at):
            raise ValueError("no object")
        at = _skip_space(text, at + 1)
        while not text.startswith("}", at):
            try:
                name, at = _scan(text, at)
            except StopIteration as end:  # StopIteration must not leave a generator
                raise ValueError("no name") from end
            at = _skip_space(text, at)
            if type(name) is not str or not text.startswith(":", at):
                raise ValueError("no name")
            yield name, _skip_space(text, at + 1)
            at = _skip_space(text, self.at)
            if text.startswith(",", at):
                at = _skip_space(text, at + 1)
            elif not text.startswith("}", at):
                raise ValueError("no end")
        self.at = at + 1


class _ArrayReader:
    """Reads the elements of an array that begins at `start`. `end` is the end of the array, or of its readable part."""

    def __init__(self, text: str, start: int, max_events: int) -> None:
        self._text = text
        self._max_events = max_events
        self.end = start + 1
        self._tokens = _MAX_RECOVERY_TOKENS

    def read(self) -> Steps[list[SentEvent]]:
        text, events = self._text, list[SentEvent]()
        step_end = min(EVENTS_PER_STEP, self._max_events)
        at = _skip_space(text, self.end)
        while at < len(text) and text[at] != "]":
            try:
                value, end = _scan(text, at)
            except _SCAN_ERRORS:
                value, end = None, self._end_of_malformed(at)
            after = _skip_space(text, end)
            # A complete object is an event even at the end of a truncated text, because it cannot be the start of a
            # longer one.
            if after < len(text) and not text.startswith((",", "]"), after):
                value, end = None, self._end_of_malformed(end)
                after = _skip_space(text, end)
            events.append(SentEvent(text[at:end], value if type(value) is dict else None))
            if len(events) > step_end:
                if len(events) > self._max_events:
                    raise TooLargeError
                step_end = min(step_end + EVENTS_PER_STEP, self._max_events)
                yield
            at = _skip_space(text, after + 1) if text.startswith(",", after) else after
        self.end = min(at + 1, len(text))
        return events

    def _end_of_malformed(self, at: int) -> int:
        """Returns the end of a malformed element: the comma or bracket that follows it, or the end of the text."""
        opened = _BracketStack()
        for token in _TOKEN.finditer(self._text, at):
            self._tokens -= 1
            first = token[0][0]
            if self._tokens <= 0:
                break
            if first in "{[":
                opened.open(first)
            elif first in "}]" and opened:
                opened.close(_OPENERS[first])
            elif first in ",]" and not opened:
                return token.start()
        return len(self._text)


class _BracketStack:
    """Open brackets. Closing one takes constant time, regardless of their number."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._counts = {"{": 0, "[": 0}

    def __bool__(self) -> bool:
        return bool(self._open)

    def open(self, opener: str) -> None:
        self._open.append(opener)
        self._counts[opener] += 1

    def close(self, opener: str) -> None:
        """Closes the last open bracket of this kind and the brackets opened after it; the last one of any kind if there
        is none.
        """
        while (newest := self._open.pop()) != opener and self._counts[opener]:
            self._counts[newest] -= 1
        self._counts[newest] -= 1


def _parse_event(text: str) -> SentEvent:
    at = _skip_space(text, 0)
    try:
        value, end = _scan(text, at)
    except _SCAN_ERRORS:
        return SentEvent(text, None)
    if type(value) is not dict or _skip_space(text, end) != len(text):
        return SentEvent(text, None)
    return SentEvent(text[at:end], value)


def _skip_space(text: str, at: int) -> int:
    """Returns the position after white space that begins at a position."""
    if at < len(text) and text[at] > " ":
        return at
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]


def _optional_text(value: Any) -> str | None:
    return value if type(value) is str else None
