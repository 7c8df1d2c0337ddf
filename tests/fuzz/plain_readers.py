"""Slow, simple readers of JSON, CSV, TSV and text lines, written from the documentation without product code.

A reader returns the events of a payload, or a range of their number where the documentation leaves it open. Broken JSON
counts as at least one event and covers as few bytes as possible.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: Longer payloads are only checked for the product's memory and CPU.
MOST_BYTES = 1 << 19
_WHITE_SPACE = " \t\r\n"
_MOST_DIGITS = 300
_MOST_LINES_OF_A_RECORD = 1_000
_MARK = "\ufeff"


class _Mark:
    """Placeholder for an event."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


#: An unreadable event, and one whose outcome is not certain.
BROKEN, UNSURE = _Mark("<broken>"), _Mark("<unsure>")


@dataclass(frozen=True, slots=True)
class Reading:
    """Content of a payload.

    `events` are all events if `least` and `most` equal their number, otherwise the first ones. `whole`: one quarantine
        row
    may, or must, represent the complete payload. `kept` are events that must be read, at any position; `broken` is the
    minimum number of quarantine rows. `may_be_empty`: the payload may have no row.
    """

    events: Sequence[Any] = ()
    least: int = 0
    most: float = 0
    whole: bool = False
    kept: Sequence[Mapping[str, Any]] = field(default=())
    broken: int = 0
    may_be_empty: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether only one result is correct."""
        return self.least == self.most == len(self.events) and not self.whole


def exactly(events: Sequence[Any]) -> Reading:
    """Returns a reading of these events and no others."""
    return Reading(events, len(events), len(events))


NOTHING = Reading(whole=True)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _whole_number(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError("a number that parsers are free to refuse")
    return int(digits)


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number that parsers are free to refuse")
    return number


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_whole_number, parse_float=_number)
#: A lone surrogate: valid in JSON's grammar, but not in UTF-8.
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


#: White space, record separators and byte order marks.
_BETWEEN = f"{_WHITE_SPACE}\x1e\ufeff"


def json_values(payload: bytes) -> Reading:
    """Reads JSON: any sequence of values; elements of an array count individually."""
    payload = payload.removeprefix(_MARK.encode())
    if len(payload) > MOST_BYTES:
        return Reading((), 0, float("inf"), whole=True)
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return Reading((), 0 if not payload.strip() else 1, float("inf"), whole=True)
    if SURROGATE.search(text):
        return Reading((), 1, float("inf"), whole=True)
    values, position = [], 0
    while True:
        commas = 0
        while position < len(text) and (
            text[position] in _BETWEEN or (values and text[position] == "," and not commas)
        ):
            commas += text[position] == ","
            position += 1
        if position == len(text):
            break
        try:
            value, position = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            return Reading(values, len(values) + 1, float("inf"), whole=not values, kept=_whole_lines(text))
        values += value if isinstance(value, list) else [value]
    return exactly(values) if text.strip() else NOTHING


def _whole_lines(text: str) -> list[dict[str, Any]]:
    """Returns the objects on single lines, if every other line is just the beginning of one."""
    kept = []
    for line in (part.strip(_WHITE_SPACE) for part in text.split("\n")):
        if not line:
            continue
        try:
            value = _DECODER.decode(line)
        except (ValueError, RecursionError):
            if not line.startswith('{"') or line.count("{") > 1 or set("[}]") & set(line):
                return []
            continue
        if not isinstance(value, dict):
            return []
        kept.append(value)
    return kept


def unwrapped(reading: Reading, name: str) -> Reading:
    """Returns the events in a field: an object, an array of objects, or either as a string."""
    try:
        events = [event for value in reading.events for event in _inside(value, name)]
    except (ValueError, RecursionError):  # values that parsers may refuse
        return Reading((), 1, float("inf"), whole=True)
    least = len(events) + reading.least - len(reading.events)
    return Reading(events, least, reading.most if reading.most == float("inf") else least, reading.whole)


def _inside(value: Any, name: str) -> list[Any]:
    inner = value.get(name) if isinstance(value, dict) else None
    if isinstance(inner, str):
        try:
            inner = json.loads(inner)
        except ValueError:
            if value[name].lstrip().startswith("["):
                raise  # its elements are read one by one, as far as they can be told apart
            return [BROKEN]
        # Parses again: values that only some parsers accept do not count as a difference.
        _DECODER.decode(value[name])
        if SURROGATE.search(value[name]):
            raise ValueError("half of a character")
    return inner if isinstance(inner, list) else [BROKEN if inner is None else inner]


def text_lines(payload: bytes) -> list[str]:
    r"""Splits lines at `\n`, `\r` or both and keeps the ends; invalid UTF-8 bytes are preserved."""
    text = payload.decode("utf-8", "surrogateescape").removeprefix(_MARK)
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$", text)


def csv_records(
    payload: bytes, *, delimiter: str = ",", quote: str = '"', names: Sequence[str] = (), null: str = ""
) -> Reading:
    """Reads CSV by RFC 4180; without declared names the first record holds them."""
    if not payload.removeprefix(_MARK.encode()).strip():
        return NOTHING
    records = _records(text_lines(payload), delimiter, quote)
    if not names:
        if not records:
            return exactly(())
        header = records.pop(0)
        names = [] if header is BROKEN else [name.strip() for name in header]
        if not names or "" in names or len(set(names)) < len(names):
            return NOTHING
    events = [
        BROKEN
        if record is BROKEN or len(record) != len(names)
        else {name: value for name, value in zip(names, record, strict=True) if value != null}
        for record in records
    ]
    return exactly(events)


def _records(lines: Sequence[str], delimiter: str, quote: str) -> list[Any]:
    records: list[Any] = []
    first = 0
    while first < len(lines):
        fields, taken = _record(lines[first : first + _MOST_LINES_OF_A_RECORD], delimiter, quote)
        if fields != []:
            records.append(BROKEN if fields is None else fields)
        first += taken
    return records


def _record(lines: Sequence[str], delimiter: str, quote: str) -> tuple[list[str] | None, int]:
    """Returns the fields of the record that begins on the first line, and its number of lines.

    Returns None for a broken record, which takes its first line, and no fields for a blank line.
    """
    if lines[0].strip("\r\n") == "":
        return [], 1
    text, fields, position = "".join(lines), [], 0
    while True:
        if text.startswith(quote, position):
            value, end = _quoted(text, position + 1, quote)
            if value is None:
                return None, 1
        else:
            end = position
            while end < len(text) and text[end] not in (delimiter, "\r", "\n"):
                end += 1
            value = text[position:end]
        fields.append(value)
        if end == len(text) or text[end] in "\r\n":
            return fields, _lines_up_to(lines, end)
        if text[end] != delimiter:
            return None, 1
        position = end + 1


def _quoted(text: str, position: int, quote: str) -> tuple[str | None, int]:
    value = ""
    while (end := text.find(quote, position)) >= 0:
        value += text[position:end]
        if not text.startswith(quote, end + 1):
            return value, end + 1
        value, position = value + quote, end + 2
    return None, len(text)


def _lines_up_to(lines: Sequence[str], end: int) -> int:
    taken = length = 0
    while length <= end and taken < len(lines):
        length += len(lines[taken])
        taken += 1
    return taken


_DIRECTIVES = frozenset({"#version", "#software", "#start-date", "#end-date", "#date", "#remark"})


def field_lines(payload: bytes, *, names: Sequence[str] = (), null: str = "-") -> Reading:
    """Reads tab-separated lines; names come from the declaration or the `#Fields:` line before them."""
    if not payload.removeprefix(_MARK.encode()).strip():
        return NOTHING
    declared, has_names, events = bool(names), bool(names), []
    for line in text_lines(payload):
        text = line.rstrip("\r\n")
        directive = text.lower().partition(":")[0] if ":" in text else ""
        if directive == "#fields":
            has_names, names = True, names if declared else text[len("#Fields:") :].split()
        elif directive not in _DIRECTIVES and (text.strip() or "\t" in text):
            if not has_names:
                return NOTHING
            fields = text.split("\t")
            fits = len(fields) == len(names)
            events.append({n: f for n, f in zip(names, fields, strict=False) if f != null} if fits else BROKEN)
    return exactly(events)


def matched_lines(payload: bytes, pattern: str) -> Reading:
    """Splits non-blank lines by a pattern."""
    if not payload.removeprefix(_MARK.encode()).strip():
        return NOTHING
    events: list[Any] = []
    for line in text_lines(payload):
        text = line.rstrip("\r\n")
        if text.strip():
            match = re.fullmatch(pattern, text)
            fields = match and {name: value for name, value in match.groupdict().items() if value}
            events.append(BROKEN if fields is None else {"line": text} | fields)
    return exactly(events)
