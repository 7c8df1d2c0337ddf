"""Tables of results: text for people, records for programs.

Commands, reports of operations and the last lines of jobs use the same type. Control characters are escaped in text
output: producers choose event names and object keys, and must not control an operator's terminal.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime as dt
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from deltaworks.errors import escape_invisible

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic import BaseModel

#: `blocks` prints each row as lines of name and value, for rows of long texts. `lines` prints each row as one line with
#: cells separated by colons, like compiler errors.
Layout = Literal["table", "blocks", "lines"]


@dataclass(frozen=True, slots=True)
class Cell:
    """A value with its text for people."""

    value: Any
    text: str

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


def plain_text(listing: Listing) -> str:
    """Formats the listing as aligned text, or as its layout says. Nothing is truncated."""
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
    aligned_rows = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in aligned_rows)


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
