"""Listings: rows of cells under headers, for people as aligned text and for programs as records.

One type for everything that lists: commands, reports of operations, the last lines of jobs. A cell is a plain value,
or a `Cell` where people read it otherwise than programs do. What is printed as text is made visible first: a producer
chooses the names of events and the keys of objects, and must not write on an operator's terminal.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime as dt
import io
import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic import BaseModel

#: `blocks` prints each row as lines of name and value, for rows of long texts; `lines` as one line, its cells behind
#: colons, as compilers list what they refuse.
Layout = Literal["table", "blocks", "lines"]
#: Categories of Unicode that a terminal acts on, or shows as nothing: controls, formats, lone surrogates, what is for
#: private use or assigned to nothing, separators of lines and paragraphs.
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


@dataclass(frozen=True, slots=True)
class Cell:
    """A value, and how people read it."""

    value: Any
    text: str

    def __str__(self) -> str:
        return self.text


def count_cell(number: int) -> Cell:
    """A number of things, with separators of thousands for people."""
    return Cell(number, f"{number:,}")


def byte_count_cell(number: int) -> Cell:
    """A number of bytes, with a unit for people."""
    return Cell(number, format_bytes(number))


def timestamp_cell(at: dt.datetime | None, *, absent: str = "") -> Cell:
    """A time to the second."""
    return Cell(None if at is None else at.isoformat(), absent if at is None else f"{at:%Y-%m-%d %H:%M:%S}")


@dataclass(frozen=True, slots=True)
class Listing:
    """Headers, and rows of as many cells. Headers differ: they name the fields of records.

    Args:
        records: the same with more detail, for programs, where cells do not say all.
        title: what it lists, where several are printed together.
    """

    headers: tuple[str, ...]
    cells: list[tuple[Any, ...]] = field(default_factory=list)
    records: Sequence[Mapping[str, Any]] | None = None
    title: str = ""
    layout: Layout = "table"

    def __post_init__(self) -> None:
        if len(set(self.field_names)) < len(self.headers):
            raise ValueError(f"two columns have one name: {', '.join(self.field_names)}")

    def add(self, *cells: object) -> None:
        """Add a row.

        Raises:
            ValueError: it has more or fewer cells than there are headers.
        """
        if len(cells) != len(self.headers):
            raise ValueError(f"{len(cells)} cells for {len(self.headers)} columns")
        self.cells.append(cells)

    @property
    def field_names(self) -> tuple[str, ...]:
        """The headers as names of fields."""
        return tuple(header.lower().replace(" ", "_") or "note" for header in self.headers)

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The rows as people read them."""
        return [tuple(_text(cell) for cell in row) for row in self.cells]

    def as_records(self) -> list[Mapping[str, Any]]:
        """The rows as programs read them."""
        if self.records is not None:
            return list(self.records)
        return [dict(zip(self.field_names, (_value(cell) for cell in row), strict=True)) for row in self.cells]


def listing_of(results: Sequence[DataclassInstance | BaseModel]) -> Listing:
    """Records of one kind as a listing of their plain fields, explanations last; all fields for programs."""
    return listing_of_records([plain_record(result) for result in results])


def listing_of_records(records: Sequence[Mapping[str, Any]]) -> Listing:
    """The same of records that are plain data already. One may lack fields of the first."""
    columns = [name for name, value in (records[0] if records else {}).items() if not isinstance(value, dict | list)]
    columns.sort(key=lambda name: name == "reason")
    listing = Listing(tuple(name.replace("_", " ") for name in columns), records=records)
    for record in records:
        listing.add(*(_field_cell(record.get(name)) for name in columns))
    return listing


def plain_record(result: DataclassInstance | BaseModel) -> dict[str, Any]:
    """A result as plain data, tuples as lists."""
    record: dict[str, Any] = json_value(result)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in record.items()}


def plain_text(listing: Listing) -> str:
    """The listing as lines of aligned columns, nothing cut, or of its layout."""
    rows = [tuple(escape_invisible(cell) for cell in row) for row in listing.rows]
    if listing.layout == "blocks":
        width = max(map(len, listing.headers))
        blocks = [
            "\n".join(f"{name.ljust(width)}  {cell}" for name, cell in zip(listing.headers, row, strict=True))
            for row in rows
        ]
        return "\n\n".join(blocks)
    if listing.layout == "lines":
        return "\n".join(": ".join(filter(None, row)) for row in rows)
    lines = [listing.headers, *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(listing.headers))]
    aligned = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in aligned)


def json_text(data: Any) -> str:
    """Data as JSON. Characters that a terminal could act on are escaped, as JSON has it."""
    return json.dumps(data, indent=2, default=json_value)


def csv_text(listing: Listing) -> str:
    """The listing as CSV with a header. Invisible characters are made visible; JSON has them as they are."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(listing.field_names)
    writer.writerows([[_csv_cell(_value(cell)) for cell in row] for row in listing.cells])
    return text.getvalue()


def escape_invisible(text: str) -> str:
    """The text as one line that a terminal only shows: what it would act on is written as an escape, `\\x1b`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _escape_character(sign) if unicodedata.category(sign) in _INVISIBLE_CATEGORIES else sign for sign in text
    )


def escape_invisible_lines(text: str) -> str:
    """The same for a text of several lines, whose line ends and indents are ours."""
    return "\n".join("\t".join(map(escape_invisible, line.split("\t"))) for line in text.split("\n"))


def format_bytes(number: float) -> str:
    """A count of bytes with a unit; one below zero keeps its sign."""
    sign, number = ("-", -number) if number < 0 else ("", number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{sign}{number:.0f} {unit}" if unit == "B" else f"{sign}{number:.1f} {unit}"
        number /= 1024
    return f"{sign}{number:.1f} TiB"


def _escape_character(character: str) -> str:
    code = ord(character)
    if character in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[character]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _field_cell(value: Any) -> Any:
    """A field of a result as a cell."""
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
    """What JSON has of a value that it has no type for: a record of it, a list, or its text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _to_plain(value)
    if hasattr(value, "model_dump"):  # a pydantic model; not imported for the sake of commands that have none
        return value.model_dump()
    return list(value) if isinstance(value, tuple | set | frozenset) else str(value)


def _to_plain(value: Any) -> Any:
    """A value with the dataclasses in it as dicts. `dataclasses.asdict` of Python 3.11 takes a Counter for its items,
    and counts those."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _to_plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: _to_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        plain = [_to_plain(item) for item in value]
        return plain if isinstance(value, list) else tuple(plain)
    return value
