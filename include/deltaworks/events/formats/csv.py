"""Finds the events in CSV. Fields are texts by name; the declared types of columns say what they stand for.

A record that cannot be read is one `Malformed` piece, and the next one is looked for on the line behind its first.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from typing import Any

from deltaworks.events.columns import Misfit
from deltaworks.events.formats.json import Malformed
from deltaworks.events.formats.text import bytes_of, lines_of
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

    def values(self, payload: bytes) -> Iterator[tuple[Any, bytes]]:
        """Every record as its fields, the header excepted.

        Raises:
            Misfit: the header cannot be read.
        """
        records = self._records(lines_of(payload))
        if not self._spec.header:
            return self._named(records, self._spec.columns)
        header = next(records, None)
        return iter(()) if header is None else self._named(records, _names(header[0]))

    def _named(
        self, records: Iterator[tuple[list[str] | Malformed, bytes]], names: tuple[str, ...]
    ) -> Iterator[tuple[Any, bytes]]:
        for record, raw in records:
            if isinstance(record, Malformed):
                yield record, raw
            elif len(record) != len(names):
                yield Malformed(raw, f"{len(record)} fields, {len(names)} expected"), raw
            else:
                fields = zip(names, record, strict=True)
                yield {name: value for name, value in fields if value not in self._null}, raw

    def _records(self, lines: list[str]) -> Iterator[tuple[list[str] | Malformed, bytes]]:
        """Every record with its bytes; blank lines are none."""
        feed = _Feed(lines)
        reader = self._reader(feed)
        while True:
            feed.begin()
            try:
                record = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raw = bytes_of(feed.only_first().rstrip("\r\n"))
                yield Malformed(raw, str(error)), raw
                reader = self._reader(feed)
                continue
            if record:
                yield record, bytes_of(feed.taken().rstrip("\r\n"))

    def _reader(self, feed: _Feed) -> Iterator[list[str]]:
        return csv.reader(feed, delimiter=self._spec.delimiter, quotechar=self._spec.quote, strict=True)


class _Feed:
    """Gives a CSV reader its lines, and knows which of them the record under way has taken."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._first = self._next = 0

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        if self._next >= len(self._lines) or self._next - self._first >= MOST_LINES:
            raise StopIteration
        self._next += 1
        return self._lines[self._next - 1]

    def begin(self) -> None:
        """A record begins with the next line."""
        self._first = self._next

    def taken(self) -> str:
        """The lines of the record."""
        return "".join(self._lines[self._first : self._next])

    def only_first(self) -> str:
        """Give back all lines of the record but its first, which is returned."""
        self._next = self._first + 1
        return self._lines[self._first]


def _names(header: list[str] | Malformed) -> tuple[str, ...]:
    if isinstance(header, Malformed):
        raise Misfit(ReasonCode.MALFORMED, f"the header cannot be read: {header.detail}")
    names = tuple(name.strip() for name in header)
    if "" in names or len(set(names)) < len(names):
        raise Misfit(ReasonCode.MALFORMED, f"the header names a field twice or not at all: {', '.join(names)[:200]}")
    return names
