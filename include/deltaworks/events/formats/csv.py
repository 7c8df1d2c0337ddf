"""Reads events of line-based formats: CSV records, tab-separated log lines, and text lines by a regular expression.

Fields are texts by column name; they are parsed according to the table's column types. An unreadable CSV record yields
one `Malformed` event, and parsing continues on the line after the record's first line.

Tab-separated lines are in the W3C extended format, as written by CloudFront and other servers. A line that starts with
`#Fields:` names the fields of the following lines. The format's other directives are skipped by name; any other line
that starts with `#` is data. If `date` and `time` are fields, `datetime` combines both, in UTC.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections import deque
from collections.abc import Iterator

from deltaworks.events.budget import PARSE_ATTEMPT_BYTES, Budget, BudgetExceededError, FramedEvent
from deltaworks.events.erasure_tombstones import parse_tombstone_line
from deltaworks.events.formats.json_recovery import Malformed
from deltaworks.events.reasons import ConversionError, ReasonCode
from deltaworks.specs.record_sources import CsvSpec, TsvSpec

#: Field with the complete line.
LINE_FIELD = "line"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def iter_lines(payload: bytes) -> Iterator[str]:
    """Yields the lines with their line breaks. Invalid UTF-8 becomes surrogates, which fail when the field is
    converted.
    """
    content = io.BytesIO(payload.removeprefix(_BYTE_ORDER_MARK))
    return io.TextIOWrapper(content, "utf-8", "surrogateescape", newline="")


def encode_line(text: str) -> bytes:
    """Returns the original bytes of a line from `iter_lines`."""
    return text.encode("utf-8", "surrogateescape")


def oversized_line(text: str, budget: Budget) -> FramedEvent | None:
    """Returns a `Malformed` event if a line is longer than an event may be, otherwise None."""
    if len(text) <= budget.max_event_bytes:
        return None
    raw = encode_line(text)
    return Malformed(raw, f"the line has more than {budget.max_event_bytes} characters"), raw


class LineFramer:
    """Parses each line with a regular expression whose named groups are the fields."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern)

    def read_events(self, payload: bytes, budget: Budget) -> Iterator[FramedEvent]:
        """Yields the fields of every line that is not blank."""
        for line in iter_lines(payload):
            text = line.rstrip("\r\n")
            if not text.strip():
                continue
            yield oversized_line(text, budget) or self._event(text)

    def _event(self, text: str) -> FramedEvent:
        raw, match = encode_line(text), self._pattern.fullmatch(text)
        if (erased := parse_tombstone_line(text)) is not None:
            return erased, raw
        if match is None:
            return Malformed(raw, "the line does not match the pattern"), raw
        fields = {name: value for name, value in match.groupdict().items() if value}
        return {LINE_FIELD: text} | fields, raw


#: Maximum number of lines per record, because an unclosed quote would otherwise consume the rest of the object.
MAX_RECORD_LINES = 1_000


class CsvFramer:
    """Reads CSV (RFC 4180) with the declared delimiter, quote character and column names."""

    def __init__(self, spec: CsvSpec) -> None:
        self._spec = spec
        self._null_values = frozenset(spec.null_values)
        csv.field_size_limit(sys.maxsize)

    def read_events(self, payload: bytes, budget: Budget) -> Iterator[FramedEvent]:
        """Yields every record except the header as a mapping of field names to texts.

        Raises:
            ConversionError: the header is unreadable.
            BudgetExceededError: max_scans, unclosed quotes were scanned too often.
        """
        records = self.read_records(iter_lines(payload), budget)
        names = self._spec.columns
        if self._spec.header:
            header = next(records, None)
            names = () if header is None else _column_names(header[0])
        for record, raw in records:
            if isinstance(record, Malformed):
                yield record, raw
            elif len(record) == 1 and (erased := parse_tombstone_line(record[0])) is not None:
                yield erased, raw
            elif len(record) != len(names):
                yield Malformed(raw, f"{len(record)} fields, {len(names)} expected"), raw
            else:
                fields = zip(names, record, strict=True)
                yield {name: value for name, value in fields if value not in self._null_values}, raw

    def read_records(self, lines: Iterator[str], budget: Budget) -> Iterator[tuple[list[str] | Malformed, bytes]]:
        """Yields every record, including the header, with its bytes. Blank lines are skipped.

        Raises:
            BudgetExceededError: max_scans.
        """
        feed = _LineFeed(lines, budget)
        reader = self._create_reader(feed)
        while True:
            feed.start_record()
            try:
                record = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                line = feed.push_back_rest().rstrip("\r\n")
                raw = encode_line(line)
                yield oversized_line(line, budget) or (Malformed(raw, str(error)), raw)
                reader = self._create_reader(feed)
                continue
            if record:
                yield record, encode_line(feed.record_text().rstrip("\r\n"))

    def _create_reader(self, feed: _LineFeed) -> Iterator[list[str]]:
        return csv.reader(feed, delimiter=self._spec.delimiter, quotechar=self._spec.quote, strict=True)


class _LineFeed:
    """Iterator of lines for a CSV reader, which keeps the lines of the current record so that they can be
    pushed back."""

    def __init__(self, lines: Iterator[str], budget: Budget) -> None:
        self._lines = lines
        self._budget = budget
        self._pushed_back: deque[str] = deque()
        self._record_lines: list[str] = []
        self._length = 0

    def __iter__(self) -> _LineFeed:
        return self

    def __next__(self) -> str:
        if len(self._record_lines) >= MAX_RECORD_LINES or self._length > self._budget.max_event_bytes:
            raise StopIteration
        line = self._pushed_back.popleft() if self._pushed_back else next(self._lines)
        self._record_lines.append(line)
        self._length += len(line)
        if self._length > self._budget.max_event_bytes:
            # A record longer than an event may be is not parsed.
            raise csv.Error(f"a record has more than {self._budget.max_event_bytes} characters")
        return line

    def start_record(self) -> None:
        """Starts a new record with the next line."""
        self._record_lines, self._length = [], 0

    def record_text(self) -> str:
        """Returns the text of the current record, with its line breaks."""
        return "".join(self._record_lines)

    def push_back_rest(self) -> str:
        """Returns the first line of the current record; the reader gets the record's other lines again.

        Raises:
            BudgetExceededError: max_scans.
        """
        first, *others = self._record_lines
        self._pushed_back.extendleft(reversed(others))
        try:
            self._budget.count_scanned(self._length + PARSE_ATTEMPT_BYTES)
        except BudgetExceededError as over:
            over.unread = encode_line("".join((first, *self._pushed_back, *self._lines)))
            raise
        return first


def _column_names(header: list[str] | Malformed) -> tuple[str, ...]:
    if isinstance(header, Malformed):
        raise ConversionError(ReasonCode.MALFORMED, f"the header is unreadable: {header.detail}")
    names = tuple(name.strip() for name in header)
    if "" in names or len(set(names)) < len(names):
        raise ConversionError(
            ReasonCode.MALFORMED, f"the header has a duplicate or empty field name: {', '.join(names)[:200]}"
        )
    return names


#: Directives of the W3C extended log file format.
_DIRECTIVE = re.compile(r"#(?:Version|Fields|Software|Start-Date|End-Date|Date|Remark):", re.IGNORECASE)
_FIELDS_DIRECTIVE = "#fields:"
#: The field combined from a date and a time.
DATETIME_FIELD = "datetime"


class FieldLineFramer:
    """Parses lines with the declared field names, or with those of the last `#Fields:` line."""

    def __init__(self, spec: TsvSpec) -> None:
        self._columns = spec.columns
        self._null_values = frozenset(spec.null_values)

    def read_events(self, payload: bytes, budget: Budget) -> Iterator[FramedEvent]:
        """Yields every line as an event.

        Raises:
            ConversionError: a line precedes the field names.
        """
        names: tuple[str, ...] | None = self._columns or None
        for line in iter_lines(payload):
            text = line.rstrip("\r\n")
            # A line of empty fields is not blank.
            if not text.strip() and "\t" not in text:
                continue
            # Anonymised logs have a single `#` instead of a directive. It is a value where a line has one field.
            if text.strip() == "#" and "\t" not in text and len(names or ()) != 1:
                continue
            directive = _DIRECTIVE.match(text)
            if directive is None or len(text) > budget.max_event_bytes:
                if names is None:
                    detail = "there is no #Fields line, and no columns are declared"
                    raise ConversionError(ReasonCode.OBJECT_WRONG_FORMAT, detail)
                yield oversized_line(text, budget) or self._event(names, text)
            elif directive.group().lower() == _FIELDS_DIRECTIVE:
                names = self._columns or tuple(text[directive.end() :].split())

    def _event(self, names: tuple[str, ...], text: str) -> FramedEvent:
        raw, fields = encode_line(text), text.split("\t")
        if len(fields) == 1 and (erased := parse_tombstone_line(text)) is not None:
            return erased, raw
        if len(fields) != len(names):
            return Malformed(raw, f"{len(fields)} fields, {len(names)} expected"), raw
        event = {name: value for name, value in zip(names, fields, strict=True) if value not in self._null_values}
        if "date" in event and "time" in event and DATETIME_FIELD not in event:
            event[DATETIME_FIELD] = f"{event['date']}T{event['time']}Z"
        return event, raw
