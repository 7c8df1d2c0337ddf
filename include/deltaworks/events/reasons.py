"""Reasons for quarantine, the schema of the quarantine table, and errors of conversions with their values as text."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson
import pyarrow as pa

from deltaworks.control.clock import EARLIEST_US, LATEST_US


class ReasonCode(StrEnum):
    """Codes of the reasons for which events are quarantined."""

    MALFORMED = "malformed"
    NOT_AN_OBJECT = "not_an_object"
    MISSING_REQUIRED = "missing_required"
    TYPE_MISMATCH = "type_mismatch"
    OUT_OF_RANGE = "out_of_range"
    NAME_TAKEN = "name_taken"
    UNKNOWN_EVENT = "unknown_event"
    TOO_LARGE = "too_large"
    OVER_BUDGET = "over_budget"
    TOO_OLD = "too_old"
    TOO_FAR_IN_FUTURE = "too_far_in_future"
    RULE = "rule"
    TOMBSTONE = "tombstone"
    RECORDS_LOST = "records_lost"
    OBJECT_MISSING = "object_missing"
    OBJECT_CHANGED = "object_changed"
    OBJECT_UNREADABLE = "object_unreadable"
    OBJECT_EMPTY = "object_empty"
    OBJECT_WRONG_FORMAT = "object_wrong_format"


#: Value of `_position` for a quarantine row that represents an entire object.
ENTIRE_OBJECT = -1


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason for quarantine: code, field, and description."""

    code: ReasonCode
    path: str
    detail: str


#: Name of the quarantine table.
QUARANTINE_TABLE = "quarantine"
QUARANTINE_SCHEMA = pa.schema(
    [
        pa.field("quarantine_date", pa.date32()),
        pa.field("event_name", pa.string()),
        pa.field(
            "reasons",
            pa.list_(
                pa.field(
                    "element",
                    pa.struct(
                        [
                            pa.field("code", pa.string()),
                            pa.field("path", pa.string()),
                            pa.field("detail", pa.string()),
                        ]
                    ),
                )
            ),
        ),
        pa.field("raw", pa.string()),
        pa.field("raw_bytes", pa.int64()),
        pa.field("raw_complete", pa.bool_()),
        pa.field("object_key", pa.string()),
        pa.field("spec_fingerprint", pa.string()),
        pa.field("_ingested_at", pa.timestamp("us", tz="UTC")),
        pa.field("_batch_id", pa.int64()),
        pa.field("_seq", pa.int64()),
        pa.field("_position", pa.int64()),
        pa.field("record", pa.string()),
        pa.field("arrived_at", pa.timestamp("us", tz="UTC")),
        pa.field("events", pa.int64()),
    ]
)
QUARANTINE_PARTITION = ("quarantine_date",)


@dataclass(frozen=True, slots=True)
class RejectedEvent:
    """An event or object to be written to quarantine.

    Attributes:
        record: metadata of a stream record.
        arrived_at_us: see `Payload`.
        original_bytes: length of the sent value, if `raw` differs from it.
        events: number of events that the row stands for; estimated if they could not be told apart.
    """

    seq: int
    position: int
    key: str
    raw: bytes
    event_name: str | None
    reasons: tuple[Reason, ...]
    record: Mapping[str, Any] | None = None
    arrived_at_us: int | None = None
    original_bytes: int | None = None
    events: int = 1


def to_printable(text: str) -> str:
    r"""Returns the text with invalid bytes and unpaired surrogates escaped, such as `\\xNN`."""
    if text.isascii():
        return text
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()


def quarantine_rows(
    rejected: Sequence[RejectedEvent],
    *,
    batch_id: int,
    ingested_at_us: int,
    fingerprint: str,
    retain_raw_bytes: int,
    withhold_raw: bool = False,
) -> pa.Table:
    """Builds rows of the quarantine table. Raw values are cut at `retain_raw_bytes`. Never raises.

    With `withhold_raw`, only the length of raw values is stored, because they may contain private fields. Invalid UTF-8
    and values without JSON form are stored as text as far as possible.
    """
    instant = pa.scalar(ingested_at_us, pa.int64())
    times = pa.repeat(instant, len(rejected)).cast(pa.timestamp("us", tz="UTC"))
    reasons = [
        [
            {"code": str(reason.code), "path": to_printable(reason.path), "detail": to_printable(reason.detail)}
            for reason in row.reasons
        ]
        for row in rejected
    ]
    max_bytes = 0 if withhold_raw else retain_raw_bytes
    raws = [row.raw[:max_bytes].decode("utf-8", "backslashreplace") for row in rejected]
    columns = [
        times.cast(pa.date32()),
        [None if row.event_name is None else to_printable(row.event_name) for row in rejected],
        reasons,
        raws,
        [len(row.raw) if row.original_bytes is None else row.original_bytes for row in rejected],
        [
            not withhold_raw and _is_complete(row, raw, retain_raw_bytes)
            for row, raw in zip(rejected, raws, strict=True)
        ],
        [to_printable(row.key) for row in rejected],
        [fingerprint] * len(rejected),
        times,
        [batch_id] * len(rejected),
        [row.seq for row in rejected],
        [row.position for row in rejected],
        [None if row.record is None else _record_json(row.record) for row in rejected],
        pa.array([_date_range_or_none(row.arrived_at_us) for row in rejected], pa.int64()).cast(
            pa.timestamp("us", tz="UTC")
        ),
        [row.events for row in rejected],
    ]
    arrays = [
        values if isinstance(values, pa.Array) else pa.array(values, kind.type)
        for values, kind in zip(columns, QUARANTINE_SCHEMA, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=QUARANTINE_SCHEMA)


def _date_range_or_none(micros: int | None) -> int | None:
    """Returns the instant, or None outside the calendar's range. Producers may set a record's time in any unit."""
    return micros if micros is not None and EARLIEST_US <= micros <= LATEST_US else None


def _record_json(record: Mapping[str, Any]) -> str:
    try:
        return orjson.dumps(record).decode()
    except (ValueError, TypeError, OverflowError, RecursionError):  # orjson's errors are subclasses
        return orjson.dumps(_writable_record(record)).decode()


def _writable_record(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the record's metadata; values that JSON cannot represent are replaced by a placeholder."""
    fields: dict[str, Any] = {}
    for name, value in record.items():
        try:
            orjson.dumps(value)
            fields[to_printable(str(name))] = value
        except (ValueError, TypeError, RecursionError):
            fields[to_printable(str(name))] = (
                to_printable(value) if isinstance(value, str) else ("(cannot be serialized)")
            )
    return fields


def _is_complete(row: RejectedEvent, raw: str, retain_raw_bytes: int) -> bool:
    """Returns whether `raw` is stored as it was sent, neither cut nor redacted."""
    return (
        row.position != ENTIRE_OBJECT
        and row.original_bytes is None
        and len(row.raw) <= retain_raw_bytes
        and raw.encode() == row.raw
    )


_MAX_SHOWN_CHARACTERS = 80
#: Distinguishes a string of digits from a number.
_JSON_NOUNS = {
    str: "the text",
    bool: "the boolean",
    int: "the number",
    float: "the number",
    list: "the array",
    dict: "the object",
}


class ConversionError(Exception):
    """Raised for a value that cannot be converted; `code` gives the reason.

    For an exceeded budget, `path` is its name. Otherwise it is the location in the column's value: `.items[].count`.
    """

    def __init__(self, code: ReasonCode, detail: str, *, path: str = "") -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.path = path

    def nested_in(self, name: str) -> ConversionError:
        """Prefixes the error's path with the name of the enclosing field, and returns the error."""
        self.path = f"{name}{self.path}"
        return self


def format_value(value: Any) -> str:
    """Returns the first characters of a value for messages. Large and deep values are cut before they are formatted."""
    text = _REPR.repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else text[: _MAX_SHOWN_CHARACTERS - 3] + "..."


def _create_repr() -> reprlib.Repr:
    description = reprlib.Repr()
    description.maxlevel = 8
    description.maxlist = description.maxdict = description.maxtuple = _MAX_SHOWN_CHARACTERS
    # Longer than the shown length, so reprlib never elides the middle of a value that fits.
    description.maxstring = description.maxlong = description.maxother = 2 * _MAX_SHOWN_CHARACTERS
    return description


_REPR = _create_repr()


def describe_value(value: Any) -> str:
    """Describes a value and its JSON type in messages, such as `the text '1'`."""
    noun = _JSON_NOUNS.get(type(value))
    return f"{noun} {format_value(value)}" if noun else format_value(value)


def type_mismatch(value: Any, kind: object) -> ConversionError:
    """Returns the error for a value whose type differs from `kind`."""
    return ConversionError(ReasonCode.TYPE_MISMATCH, f"{describe_value(value)} is not a valid {kind}")
