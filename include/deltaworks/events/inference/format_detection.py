"""Tells from the beginning of a file how its events are written, in the words of a source's declaration."""

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
#: A time of the day as it stands beside a date in logs.
_TIME_OF_DAY = re.compile(r"\d\d:\d\d:\d\d(\.\d+)?")


class UnknownFormat(Exception):
    """It is of no form that a source reads, or of none that can be told; says why."""


def detect_format(head: bytes) -> Mapping[str, Any]:
    """Keys of a source: `format`, and `csv` or `tsv` where these need more.

    Args:
        head: how the content begins, decompressed; it may end anywhere.

    Raises:
        UnknownForm: with what there is to say.
    """
    if head.startswith(parquet.MAGIC):
        return {"format": "parquet"}
    if head.startswith(avro.MAGIC):
        return {"format": "avro"}
    try:
        reject_other_formats(head, "a form of text")
    except ConversionError as misfit:
        raise UnknownFormat(misfit.detail) from misfit
    content = head.removeprefix(_BYTE_ORDER_MARK).lstrip()
    if not content:
        raise UnknownFormat("it holds nothing")
    if content[:1] in (b"{", b"[") and _is_json(content):
        return {"format": "json"}
    text = content.decode("utf-8", "replace")
    if any(line.startswith("#Fields:") for line in text.splitlines()):
        return {"format": "tsv"}
    return _detect_delimited(text)


def _is_json(content: bytes) -> bool:
    """Whether it reads as JSON, but for an end that may be cut off."""
    if content.startswith(b"["):
        # The end of an array is not in sight: its first element tells.
        content = content[1:].lstrip()
        if content[:1] in (b"]", b""):
            return True
    first = next(iter(read_events(content)), None)
    if first is None:
        return False
    value, raw = first
    return not isinstance(value, Malformed) or (b"\n" not in raw.rstrip() and raw.startswith(b'{"'))


def _detect_delimited(text: str) -> Mapping[str, Any]:
    whole = text[: text.rfind("\n") + 1] or text
    for delimiter in _DELIMITERS:
        # In lines of fields what begins so says nothing; in any other form it is a record.
        lines = [line for line in whole.splitlines(keepends=True) if delimiter != "\t" or not line.startswith("#")]
        records = _parse_records("".join(lines), delimiter)
        if len(records) > 1 and len(records[0]) > 1 and len({len(record) for record in records}) == 1:
            return _declare_delimited(records, delimiter)
    first = text.splitlines()[0][:80]
    raise UnknownFormat(
        f"its lines are neither JSON nor records of fields: {first!r}. For lines that a pattern takes apart declare "
        "format: text by hand"
    )


def _parse_records(text: str, delimiter: str) -> list[list[str]]:
    """The first records, up to where it cannot be read so: the end of what is looked at may be inside of a quote."""
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
            # As logs of web servers have it: both together are the field `datetime`.
            return {"format": "tsv", "tsv": {"columns": ["date", "time", *columns[2:]], "null_values": ["-", ""]}}
        return {"format": "csv", "csv": {"delimiter": delimiter, "header": False, "columns": columns}}
    raise UnknownFormat("its first line names a field twice or not at all: give every field a name")


def _starts_with_datetime(record: list[str]) -> bool:
    return len(record) > 2 and _text_forms(record[0]) == {DATE} and _TIME_OF_DAY.fullmatch(record[1]) is not None


def _may_be_header(record: list[str]) -> bool:
    """Whether a record may be a header: names are no numbers and no times."""
    return not any(_text_forms(text) & {DATE, INSTANT, DIGITS, FRACTION, NUMBER} for text in record)


def _text_forms(text: str) -> set[str]:
    profile = FieldProfile()
    profile.add_value(text)
    return set(profile.text_forms) - {NULL_WORD}
