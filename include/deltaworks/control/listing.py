"""Tables of results: text for people, records for programs.

Commands, reports of operations and the last lines of jobs use the same type. Control characters are escaped in text
output: producers choose event names and object keys, and must not control an operator's terminal.

A table that is wider than the terminal folds long columns under their rows and omits minor ones. No word is broken
that fits a line.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime as dt
import io
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from deltaworks.errors import escape_invisible

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic import BaseModel

#: `blocks` prints each row as lines of name and value, for rows of long texts. `lines` prints each row as one line with
#: cells separated by colons, like compiler errors.
Layout = Literal["table", "blocks", "lines"]
#: Width of text in logs, which are read in a browser.
LOG_WIDTH = 140
#: Longer cells do not widen their column where the width of the output is unknown.
_MAX_COLUMN_WIDTH = 40
_MIN_WIDTH = 20
_GAP = "  "
_INDENT = "    "
#: Words, and commands in backticks, which can be copied if they stay on one line.
_WORD = re.compile(r"[^\s`]*`[^`]*`[^\s`]*|\S+")
#: Where a word is broken that is longer than a line: after a separator of paths and names.
_BREAK = re.compile(r"(?<=[/=,:._&?-])")


@dataclass(frozen=True, slots=True)
class Cell:
    """A value with its text for people. A minor text is omitted where its column is folded under the row."""

    value: Any
    text: str
    is_minor: bool = False

    def __str__(self) -> str:
        return self.text


def count_cell(number: int) -> Cell:
    """Returns a cell for a count, with thousands separators in the text for people."""
    return Cell(number, f"{number:,}")


def byte_count_cell(number: int) -> Cell:
    """Returns a cell for a number of bytes, with a unit in the text for people."""
    return Cell(number, format_bytes(number))


def timestamp_cell(at: dt.datetime | None, *, default: str = "") -> Cell:
    """Returns a cell for a time, rounded to the second in the text for people."""
    return Cell(None if at is None else at.isoformat(), default if at is None else f"{at:%Y-%m-%d %H:%M:%S}")


@dataclass(frozen=True, slots=True)
class Listing:
    """A table of results. Header names must be unique: they become field names of records.

    Args:
        records: more detailed records for programs, if the cells do not contain all fields.
        title: heading when several listings are printed together.
        details: columns of long texts, which are folded under their row first if the table is too wide.
        minor: columns that are omitted next if the table is too wide, in this order.
    """

    headers: tuple[str, ...]
    cells: list[tuple[Any, ...]] = field(default_factory=list)
    records: Sequence[Mapping[str, Any]] | None = None
    title: str = ""
    layout: Layout = "table"
    details: tuple[str, ...] = ()
    minor: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if unknown := {*self.details, *self.minor} - set(self.headers):
            raise ValueError(f"there is no column {', '.join(sorted(unknown))}")
        if len(set(self.field_names)) < len(self.headers):
            raise ValueError(f"two columns have one name: {', '.join(self.field_names)}")

    def add(self, *cells: object) -> None:
        """Adds a row.

        Raises:
            ValueError: the number of cells differs from the number of headers.
        """
        if len(cells) != len(self.headers):
            raise ValueError(f"{len(cells)} cells for {len(self.headers)} columns")
        self.cells.append(cells)

    @property
    def field_names(self) -> tuple[str, ...]:
        """The headers as field names."""
        return tuple(header.lower().replace(" ", "_") or "note" for header in self.headers)

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The rows of the table as text for people."""
        return [tuple(_text(cell) for cell in row) for row in self.cells]

    def as_records(self) -> list[Mapping[str, Any]]:
        """Returns the rows as records for programs."""
        if self.records is not None:
            return list(self.records)
        return [dict(zip(self.field_names, (_value(cell) for cell in row), strict=True)) for row in self.cells]


def listing_of(results: Sequence[DataclassInstance | BaseModel]) -> Listing:
    """Builds a listing from results of one type: their scalar fields, with `reason` last. Programs get all fields."""
    return listing_of_records([plain_record(result) for result in results])


def listing_of_records(records: Sequence[Mapping[str, Any]]) -> Listing:
    """Builds a listing from plain records. The first record determines the columns."""
    columns = [name for name, value in (records[0] if records else {}).items() if not isinstance(value, dict | list)]
    columns.sort(key=lambda name: name == "reason")
    listing = Listing(tuple(name.replace("_", " ") for name in columns), records=records)
    for record in records:
        listing.add(*(_field_cell(record.get(name)) for name in columns))
    return listing


def plain_record(result: DataclassInstance | BaseModel) -> dict[str, Any]:
    """Converts a result to plain data, with lists instead of tuples."""
    record: dict[str, Any] = json_value(result)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in record.items()}


def plain_text(listing: Listing, *, width: int | None = None) -> str:
    """Formats the listing as aligned text, or as its layout says. Nothing is truncated.

    Args:
        width: of the terminal; no line is longer. None: each row is one line.
    """
    width = width and max(width, _MIN_WIDTH)
    rows = [tuple(escape_invisible(cell) for cell in row) for row in listing.rows]
    if listing.layout == "blocks":
        return "\n\n".join("\n".join(_block(listing.headers, row, width)) for row in rows)
    if listing.layout == "lines":
        joined = (": ".join(filter(None, row)) for row in rows)
        return "\n".join(joined if width is None else (wrap(line, width, hanging=_INDENT) for line in joined))
    if not listing.headers:
        return ""
    shown, folded = (range(len(listing.headers)), []) if width is None else _fold(listing, rows, width)
    header, *lines = _table_lines([listing.headers, *rows], shown, width)
    text = [header]
    for cells, row, line in zip(listing.cells, rows, lines, strict=True):
        below = [at for at in folded if row[at] and not getattr(cells[at], "is_minor", False)]
        text += [line, *_folded_lines([(listing.headers[at], row[at]) for at in below], width or 0)]
    return "\n".join(text)


def hidden_columns(listing: Listing, width: int | None) -> tuple[str, ...]:
    """Returns the columns that `plain_text` omits at this width."""
    if width is None or listing.layout != "table" or not listing.headers:
        return ()
    rows = [tuple(escape_invisible(cell) for cell in row) for row in listing.rows]
    shown, folded = _fold(listing, rows, max(width, _MIN_WIDTH))
    return tuple(name for at, name in enumerate(listing.headers) if at not in {*shown, *folded})


def wrap(text: str, width: int, *, hanging: str = "") -> str:
    """Wraps a line at words. Commands in backticks and words are broken only if they are longer than a line.

    Further lines start with the indentation of the first one, and `hanging`.
    """
    if display_width(text) <= width:
        return text
    stripped = text.lstrip(" ")
    margin = " " * min(len(text) - len(stripped), width // 2)
    lines, line = [], margin
    for word in _words(stripped, width - len(margin) - len(hanging)):
        if line.strip() and display_width(line) + 1 + display_width(word) > width:
            lines.append(line)
            line = margin + hanging
        line += f" {word}" if line.strip() else word
    return "\n".join([*lines, line])


def display_width(text: str) -> int:
    """Returns the columns that a text takes on a terminal: two for each wide character."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(sign) else 1 + (unicodedata.east_asian_width(sign) in "WF") for sign in text)


def _words(text: str, width: int) -> Iterator[str]:
    """Yields the words of a text, in parts if they are longer than the width."""
    for word in _WORD.findall(text):
        for part in [word] if display_width(word) <= width else word.split():
            if display_width(part) <= width:
                yield part
            else:
                yield from _pieces(part, width)


def _pieces(word: str, width: int) -> Iterator[str]:
    piece = ""
    for part in _BREAK.split(word):
        if piece and display_width(piece + part) > width:
            yield piece
            piece = ""
        for sign in part:
            if display_width(piece + sign) > width:
                yield piece
                piece = ""
            piece += sign
    if piece:
        yield piece


def _fold(listing: Listing, rows: Sequence[tuple[str, ...]], width: int) -> tuple[list[int], list[int]]:
    """Returns the columns of the table, and those that are folded under its rows."""
    sizes = [max(map(display_width, column)) for column in zip(listing.headers, *rows, strict=True)]
    # A long name stands on a line of its own.
    sizes[0] = min(sizes[0], width // 2)
    shown = list(range(len(sizes)))
    folded: list[int] = []

    def is_too_wide() -> bool:
        return sum(sizes[at] for at in shown) + len(_GAP) * (len(shown) - 1) > width

    at_names = {name: at for at, name in enumerate(listing.headers)}
    for at in (at_names[name] for name in listing.details):
        if is_too_wide():
            shown.remove(at)
            folded.append(at)
    for at in (at_names[name] for name in listing.minor if at_names[name] in shown):
        if is_too_wide():
            shown.remove(at)
    while is_too_wide():
        widest = max(shown[1:], key=lambda at: sizes[at])
        shown.remove(widest)
        folded.append(widest)
    return shown, sorted(folded)


def _table_lines(lines: Sequence[tuple[str, ...]], columns: Sequence[int], width: int | None) -> Iterator[str]:
    """Yields aligned lines without trailing blanks. A first cell that is too long stands on lines of its own."""
    sizes = []
    for at in columns:
        limit = _MAX_COLUMN_WIDTH if width is None else width // 2 if at == columns[0] else width
        sizes.append(max((size for line in lines if (size := display_width(line[at])) <= limit), default=0))
    for line in lines:
        texts = [line[at] for at in columns]
        above = ""
        if width is not None and display_width(texts[0]) > sizes[0]:
            above, texts[0] = wrap(texts[0], width, hanging=_GAP) + "\n", ""
        cells = (text + " " * (size - display_width(text)) for text, size in zip(texts, sizes, strict=True))
        yield (above + _GAP.join(cells)).rstrip()


def _folded_lines(cells: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """Yields folded cells with their names: short ones together, long ones wrapped."""
    line = ""
    for name, text in cells:
        cell = f"{_INDENT if not line else _GAP}{name}: {text}"
        if line and display_width(line + cell) > width:
            yield line
            line, cell = "", _INDENT + cell.lstrip()
        if display_width(cell) > width:
            yield wrap(cell, width, hanging=_GAP)
        else:
            line += cell
    if line:
        yield line


def _block(headers: Sequence[str], row: Sequence[str], width: int | None) -> Iterator[str]:
    size = max(map(display_width, headers))
    if width is not None:
        size = min(size, width // 2 - len(_GAP))
    for header, cell in zip(headers, row, strict=True):
        line = f"{header.ljust(size)}{_GAP}{cell}"
        if width is None or display_width(line) <= width:
            yield line.rstrip()
            continue
        is_long = display_width(header) > size
        if is_long:
            yield wrap(header, width)
        wrapped = wrap(" " * (size + len(_GAP)) + cell.lstrip(), width).lstrip(" ")
        yield f"{('' if is_long else header).ljust(size)}{_GAP}{wrapped}".rstrip()


def json_text(data: Any) -> str:
    """Formats data as JSON. Control characters are escaped."""
    return json.dumps(data, indent=2, default=json_value)


def csv_text(listing: Listing) -> str:
    """Formats the listing as CSV with a header. Invisible characters are escaped; JSON keeps them."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(listing.field_names)
    writer.writerows([[_csv_cell(_value(cell)) for cell in row] for row in listing.cells])
    return text.getvalue()


def escape_invisible_lines(text: str) -> str:
    """Escapes control characters in a text of several lines; keeps line ends and tabs."""
    return "\n".join("\t".join(map(escape_invisible, line.split("\t"))) for line in text.split("\n"))


def format_bytes(number: float) -> str:
    """Formats a number of bytes with a unit."""
    sign, number = ("-", -number) if number < 0 else ("", number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{sign}{number:.0f} {unit}" if unit == "B" else f"{sign}{number:.1f} {unit}"
        number /= 1024
    return f"{sign}{number:.1f} TiB"


def _field_cell(value: Any) -> Any:
    """Converts a field of a result to a cell."""
    if isinstance(value, float):
        return Cell(value, f"{value:.1f}")
    return count_cell(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _text(cell: Any) -> str:
    return "" if cell is None else str(cell)


def _value(cell: Any) -> Any:
    return cell.value if isinstance(cell, Cell) else cell


def _csv_cell(value: Any) -> Any:
    if value is None or isinstance(value, int | float):
        return value
    return escape_invisible(value if isinstance(value, str) else json.dumps(value, default=json_value))


def json_value(value: Any) -> Any:
    """Converts a value that JSON has no type for: dataclasses and models to dicts, collections to lists, others to
    text.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _to_plain(value)
    if hasattr(value, "model_dump"):  # a pydantic model; not imported here, to keep commands fast
        return value.model_dump()
    return list(value) if isinstance(value, tuple | set | frozenset) else str(value)


def _to_plain(value: Any) -> Any:
    """Converts nested dataclasses to dicts. `dataclasses.asdict` of Python 3.11 breaks Counters."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _to_plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: _to_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        plain = [_to_plain(item) for item in value]
        return plain if isinstance(value, list) else tuple(plain)
    return value
