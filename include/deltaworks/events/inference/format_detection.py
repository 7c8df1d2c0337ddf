"""Detects the format of a file from its first bytes, as keys of a source declaration."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Mapping
from typing import Any

from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.formats import avro, parquet
from deltaworks.events.formats.json import Malformed, read_events
from deltaworks.events.formats.registry import reject_other_formats
from deltaworks.events.inference.field_profiles import DATE, DIGITS, FRACTION, INSTANT, NULL_WORD, NUMBER, FieldProfile

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DELIMITERS = (",", "\t", ";", "|")
_MAX_RECORDS = 50
#: A time of day, which follows a date in web server logs.
_TIME_OF_DAY = re.compile(r"\d\d:\d\d:\d\d(\.\d+)?")


class UnknownFormat(Exception):
    """Raised if the format is not supported or cannot be determined; the message gives the reason."""


def detect_format(head: bytes) -> Mapping[str, Any]:
    """Returns the keys of a source declaration: `format`, and `csv` or `tsv` if needed.

    Args:
        head: first bytes of the decompressed content, cut at any position.

    Raises:
        UnknownFormat: the message gives the reason.
    """
    if head.startswith(parquet.MAGIC):
        return {"format": "parquet"}
    if head.startswith(avro.MAGIC):
        return {"format": "avro"}
    try:
        reject_other_formats(head, "a text format")
    except ConversionError as error:
        raise UnknownFormat(error.detail) from error
    content = head.removeprefix(_BYTE_ORDER_MARK).lstrip()
    if not content:
        raise UnknownFormat("it is empty")
    if content[:1] in (b"{", b"[") and _is_json(content):
        return {"format": "json"}
    text = content.decode("utf-8", "replace")
    if any(line.startswith("#Fields:") for line in text.splitlines()):
        return {"format": "tsv"}
    return _detect_delimited(text)


def _is_json(content: bytes) -> bool:
    """Returns whether the content is JSON that may be cut at its end."""
    if content.startswith(b"["):
        # The array may be cut off, so only its first element is checked.
        content = content[1:].lstrip()
        if content[:1] in (b"]", b""):
            return True
    first = next(iter(read_events(content)), None)
    if first is None:
        return False
    value, raw = first
    return not isinstance(value, Malformed) or (b"\n" not in raw.rstrip() and raw.startswith(b'{"'))


def _detect_delimited(text: str) -> Mapping[str, Any]:
    complete_lines = text[: text.rfind("\n") + 1] or text
    for delimiter in _DELIMITERS:
        # Lines that start with # are comments in TSV, and records in other formats.
        lines = [
            line for line in complete_lines.splitlines(keepends=True) if delimiter != "\t" or not line.startswith("#")
        ]
        records = _parse_records("".join(lines), delimiter)
        if len(records) > 1 and len(records[0]) > 1 and len({len(record) for record in records}) == 1:
            return _declare_delimited(records, delimiter)
    first = text.splitlines()[0][:80]
    raise UnknownFormat(
        f"its lines are neither JSON nor delimited records: {first!r}. For lines to be parsed by a pattern "
        "declare format: text manually"
    )


def _parse_records(text: str, delimiter: str) -> list[list[str]]:
    """Returns the first records, up to a parse error, because the content may be cut inside a quoted field."""
    records = []
    with contextlib.suppress(csv.Error):
        for record in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True):
            if record:
                records.append(record)
            if len(records) == _MAX_RECORDS:
                break
    return records


def _declare_delimited(records: list[list[str]], delimiter: str) -> Mapping[str, Any]:
    header = records[0]
    is_header = all(name.strip() for name in header) and len(set(header)) == len(header) and _may_be_header(header)
    if is_header:
        return {"format": "csv", "csv": {"delimiter": delimiter} if delimiter != "," else {}}
    if not _may_be_header(header):
        columns = [f"field_{number}" for number in range(1, len(header) + 1)]
        if delimiter == "\t" and all(_starts_with_datetime(record) for record in records):
            # Web server logs have date and time in separate fields; the TSV reader combines them as `datetime`.
            return {"format": "tsv", "tsv": {"columns": ["date", "time", *columns[2:]], "null_values": ["-", ""]}}
        return {"format": "csv", "csv": {"delimiter": delimiter, "header": False, "columns": columns}}
    raise UnknownFormat("its header has a duplicate or empty field name: give every field a name")


def _starts_with_datetime(record: list[str]) -> bool:
    return len(record) > 2 and _text_forms(record[0]) == {DATE} and _TIME_OF_DAY.fullmatch(record[1]) is not None


def _may_be_header(record: list[str]) -> bool:
    """Returns whether a record may be a header, because none of its fields is a number or time."""
    return not any(_text_forms(text) & {DATE, INSTANT, DIGITS, FRACTION, NUMBER} for text in record)


def _text_forms(text: str) -> set[str]:
    profile = FieldProfile()
    profile.add_value(text)
    return set(profile.text_forms) - {NULL_WORD}
