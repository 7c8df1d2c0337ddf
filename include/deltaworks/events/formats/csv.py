"""Finds the events in CSV. Fields are texts by name; the declared types of columns say what they stand for.

A record that cannot be read is one `Malformed` piece, and the next one is looked for on the line behind its first.
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
from deltaworks.events.formats.text import bytes_of, lines_of, too_long
from deltaworks.events.reasons import ReasonCode
from deltaworks.specs.sources.payload import CsvSpec

#: A quote that is never closed would take in the rest of the object: a record has at most so many lines.
MOST_LINES = 1_000


class CsvFramer:
    """Reads CSV as RFC 4180 describes it, with the delimiter, the quote and the names that are declared."""

    def __init__(self, spec: CsvSpec) -> None:
        self._spec = spec
        self._null = frozenset(spec.null_values)
        csv.field_size_limit(sys.maxsize)

    def values(self, payload: bytes, budget: Budget) -> Iterator[FramedEvent]:
        """Every record as its fields, the header excepted.

        Raises:
            Misfit: the header cannot be read.
            Exceeded: max_scans: too much was read in vain, in search of the end of a quote.
        """
        records = self.records(lines_of(payload), budget)
        names = self._spec.columns
        if self._spec.header:
            header = next(records, None)
            names = () if header is None else _names(header[0])
        for record, raw in records:
            if isinstance(record, Malformed):
                yield record, raw
            elif len(record) == 1 and (erased := parse_tombstone_line(record[0])) is not None:
                yield erased, raw
            elif len(record) != len(names):
                yield Malformed(raw, f"{len(record)} fields, {len(names)} expected"), raw
            else:
                fields = zip(names, record, strict=True)
                yield {name: value for name, value in fields if value not in self._null}, raw

    def records(self, lines: Iterator[str], budget: Budget) -> Iterator[tuple[list[str] | Malformed, bytes]]:
        """Every record with its bytes, the header among them; blank lines are none.

        Raises:
            Exceeded: max_scans.
        """
        feed = _Feed(lines, budget)
        reader = self._reader(feed)
        while True:
            feed.begin()
            try:
                record = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                line = feed.only_first().rstrip("\r\n")
                raw = bytes_of(line)
                yield too_long(line, budget) or (Malformed(raw, str(error)), raw)
                reader = self._reader(feed)
                continue
            if record:
                yield record, bytes_of(feed.taken().rstrip("\r\n"))

    def _reader(self, feed: _Feed) -> Iterator[list[str]]:
        return csv.reader(feed, delimiter=self._spec.delimiter, quotechar=self._spec.quote, strict=True)


class _Feed:
    """Gives a CSV reader its lines, and knows which of them the record under way has taken."""

    def __init__(self, lines: Iterator[str], budget: Budget) -> None:
        self._lines = lines
        self._budget = budget
        self._again: deque[str] = deque()
        self._taken: list[str] = []
        self._length = 0

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        if len(self._taken) >= MOST_LINES or self._length > self._budget.max_event_bytes:
            raise StopIteration
        line = self._again.popleft() if self._again else next(self._lines)
        self._taken.append(line)
        self._length += len(line)
        if self._length > self._budget.max_event_bytes:
            # No event is so long: it is not taken apart.
            raise csv.Error(f"a record has more than {self._budget.max_event_bytes} characters")
        return line

    def begin(self) -> None:
        """A record begins with the next line."""
        self._taken, self._length = [], 0

    def taken(self) -> str:
        """The lines of the record."""
        return "".join(self._taken)

    def only_first(self) -> str:
        """Give back all lines of the record but its first, which is returned.

        Raises:
            Exceeded: max_scans.
        """
        first, *others = self._taken
        self._again.extendleft(reversed(others))
        try:
            self._budget.count_scanned(self._length + PARSE_ATTEMPT_BYTES)
        except BudgetExceededError as over:
            over.unread = bytes_of("".join((first, *self._again, *self._lines)))
            raise
        return first


def _names(header: list[str] | Malformed) -> tuple[str, ...]:
    if isinstance(header, Malformed):
        raise ConversionError(ReasonCode.MALFORMED, f"the header cannot be read: {header.detail}")
    names = tuple(name.strip() for name in header)
    if "" in names or len(set(names)) < len(names):
        raise ConversionError(
            ReasonCode.MALFORMED, f"the header names a field twice or not at all: {', '.join(names)[:200]}"
        )
    return names
