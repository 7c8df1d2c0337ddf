"""Reads events of CSV. Fields are texts by name, parsed according to the types of columns.

An unreadable record is one `Malformed` piece; parsing continues at the line after its first one.
"""

from __future__ import annotations

import csv
import sys
from collections import deque
from collections.abc import Iterator

from deltaworks.events.budget import PARSE_ATTEMPT_BYTES, Budget, BudgetExceededError, FramedEvent
from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.erasure_tombstones import parse_tombstone_line
from deltaworks.events.formats.json_recovery import Malformed
from deltaworks.events.formats.text import encode_line, iter_lines, oversized_line
from deltaworks.events.reasons import ReasonCode
from deltaworks.specs.sources.payload import CsvSpec

#: Limit of lines per record: an unclosed quote would consume the rest of the object.
MAX_RECORD_LINES = 1_000


class CsvFramer:
    """Reads CSV (RFC 4180) with the declared delimiter, quote and column names."""

    def __init__(self, spec: CsvSpec) -> None:
        self._spec = spec
        self._null_values = frozenset(spec.null_values)
        csv.field_size_limit(sys.maxsize)

    def read_events(self, payload: bytes, budget: Budget) -> Iterator[FramedEvent]:
        """Yields every record as its fields, without the header.

        Raises:
            ConversionError: the header is unreadable.
            BudgetExceededError: max_scans: searching the end of a quote took too long.
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
        """Yields every record with its bytes, including the header, without blank lines.

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
    """Feeds lines to a CSV reader and tracks those of the current record."""

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
            # Longer than any event, so it is not parsed.
            raise csv.Error(f"a record has more than {self._budget.max_event_bytes} characters")
        return line

    def start_record(self) -> None:
        """Starts a record with the next line."""
        self._record_lines, self._length = [], 0

    def record_text(self) -> str:
        """Returns the lines of the record."""
        return "".join(self._record_lines)

    def push_back_rest(self) -> str:
        """Pushes back all lines of the record except the first, which is returned.

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
