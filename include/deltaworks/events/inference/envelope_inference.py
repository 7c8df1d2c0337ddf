"""Infers from samples how to read events: the file format, and the fields with an event's type, time and id.

The format is detected from a file's first bytes. Fields are chosen by their values and names.
"""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deltaworks.events.formats import avro, parquet
from deltaworks.events.formats.json import Malformed, read_events
from deltaworks.events.formats.registry import reject_other_formats
from deltaworks.events.inference.field_profiles import (
    DATE,
    DIGITS,
    FLOAT64,
    FRACTION,
    INSTANT,
    INT53,
    INT64,
    NULL,
    NULL_WORD,
    NUMBER,
    PLAIN,
    TEXT,
    FieldProfile,
    Path,
    is_date_only,
)
from deltaworks.events.inference.inferred_types import (
    epoch_unit,
    is_time_name,
    matching_time_formats,
    name_words,
    split_words,
    time_name_words,
)
from deltaworks.events.reasons import ConversionError
from deltaworks.specs.base import format_path
from deltaworks.specs.times import ISO_8601, TimeFormat

_TYPE_FIELD_NAMES = (
    split_words("event_name event_type type event kind action topic detail_type op operation typename")
    + tuple(
        f"{subject}_{suffix}"
        for subject in split_words("metric message msg record log activity action operation change audit signal alert")
        for suffix in ("type", "kind", "name")
    )
    + split_words("event_kind event_action verb activity metric name category")
)
_TIME_FIELD_NAMES = split_words(
    "event_time event_timestamp event_tstamp occurred_at happened_at timestamp time datetime ts derived_tstamp "
    "collector_tstamp at sent_at created_at created received_at date root_tstamp"
)
_ID_FIELD_NAMES = split_words(
    "event_id event_uuid id uuid guid message_id delivery_id insert_id record_id request_id root_id"
)
#: Objects whose field `id` is the event's id.
_ENVELOPE_OBJECTS = frozenset({"event", "meta", "metadata", "header", "headers", "envelope", "context"})
_MAX_TYPE_DEPTH, _MAX_DEPTH = 2, 3
_MAX_TYPES = 500
#: Allowed fractions: of duplicate ids, because producers send some events twice, and of events without a time.
_MAX_DUPLICATE_SHARE, _MAX_MISSING_TIME_SHARE = 0.02, 0.5


@dataclass(frozen=True, slots=True)
class FieldChoice:
    """A chosen field and the reason for choosing it."""

    path: Path
    reason: str

    @property
    def path_text(self) -> str:
        """The path as it is written in a declaration."""
        return format_path(self.path)


@dataclass(frozen=True, slots=True)
class TimeChoice(FieldChoice):
    """The chosen time field and its format."""

    form: TimeFormat


def is_declarable(path: Path) -> bool:
    """Returns whether a path can be written in a declaration; names with slashes or outer spaces cannot."""
    return all(part and "/" not in part and part == part.strip() and part.isprintable() for part in path)


def _candidates(events: FieldProfile, max_depth: int) -> Iterator[tuple[Path, FieldProfile]]:
    for path, profile in events.leaves():
        if len(path) <= max_depth and is_declarable(path) and path[0] not in ("_record", "_partition"):
            yield path, profile


def _name_rank(path: Path, names: Sequence[str], words_of: Callable[[str], list[str]] = name_words) -> int | None:
    name = "_".join(words_of(path[-1]))
    return names.index(name) if name in names else None


def choose_type_field(events: FieldProfile) -> FieldChoice | None:
    """Chooses the field with the event type: a text that every event has, with few distinct values."""
    choices = []
    for path, profile in _candidates(events, _MAX_TYPE_DEPTH):
        rank, distinct = _name_rank(path, _TYPE_FIELD_NAMES), profile.distinct_count
        if (
            rank is None
            or distinct is None
            or not _is_in_every_event(profile, events, {TEXT})
            or "" in profile.null_words
        ):
            continue
        few = distinct <= max(20, 0.3 * events.values)
        if distinct <= _MAX_TYPES and few and (_TYPE_FIELD_NAMES[rank] != "name" or len(path) == 1):
            choices.append(((distinct < 2, rank, len(path), path), FieldChoice(path, f"{distinct} different values")))
    return min(choices, key=lambda choice: choice[0])[1] if choices else None


def choose_time_field(events: FieldProfile) -> TimeChoice | None:
    """Chooses the field with the event time; if no candidate is in all events, the most frequent one."""
    choices = []
    for path, profile in _candidates(events, _MAX_DEPTH):
        form = _time_form(path[-1], profile)
        absent = events.values - profile.values
        if form is None or absent > _MAX_MISSING_TIME_SHARE * events.values:
            continue
        rank = _name_rank(path, _TIME_FIELD_NAMES, time_name_words)
        only_dates = (
            set(profile.text_forms) == {DATE}
            or (form.format is not None and is_date_only(form.format))
            or profile.is_always_midnight
        )
        order = (absent, only_dates, len(_TIME_FIELD_NAMES) if rank is None else rank, len(path), path)
        why = "a time in every event" if not absent else f"{absent:,} events have none and go to quarantine"
        choices.append((order, TimeChoice(path, why, form)))
    return min(choices, key=lambda choice: choice[0])[1] if choices else None


def ambiguous_time_fields(events: FieldProfile) -> list[tuple[Path, tuple[str, ...]]]:
    """Returns frequent fields whose texts match several time patterns, with these patterns."""
    fields = (
        (path, profile, _text_time_formats(path[-1], profile)) for path, profile in _candidates(events, _MAX_DEPTH)
    )
    return [
        (path, formats)
        for path, profile, formats in fields
        if len(formats) > 1 and events.values - profile.values <= _MAX_MISSING_TIME_SHARE * events.values
    ]


def _text_time_formats(name: str, profile: FieldProfile) -> tuple[str, ...]:
    is_plain_text = set(profile.kinds) - {NULL} == {TEXT} and set(profile.text_forms) == {PLAIN}
    return matching_time_formats(name, profile) if is_plain_text else ()


def _time_form(name: str, profile: FieldProfile) -> TimeFormat | None:
    """Returns the time format that all values of the field have; None if there is none."""
    kinds = set(profile.kinds) - {NULL}
    forms = set(profile.text_forms)
    if kinds == {TEXT} and forms and forms <= {INSTANT, DATE}:
        return ISO_8601
    formats = _text_time_formats(name, profile)
    if len(formats) == 1:
        return TimeFormat(format=formats[0])
    is_numeric = kinds and (kinds <= {INT53, INT64, FLOAT64} or (kinds == {TEXT} and forms == {DIGITS}))
    unit = epoch_unit(profile) if is_numeric and is_time_name(name) else None
    return None if unit is None else TimeFormat(unit)


def choose_id_field(events: FieldProfile) -> FieldChoice | None:
    """Chooses the field with the event id: every event has it, and its values are distinct except for some
    duplicates."""
    choices = []
    for path, profile in _candidates(events, _MAX_DEPTH):
        if not _is_in_every_event(profile, events, {TEXT, INT53, INT64}) or profile.null_words:
            continue
        rank, distinct = _name_rank(path, _ID_FIELD_NAMES), profile.distinct_count
        if distinct is None or _time_form(path[-1], profile) is not None:
            continue
        is_event_id = rank is not None and (
            len(path) == 1 or _ID_FIELD_NAMES[rank] != "id" or "_".join(name_words(path[-2])) in _ENVELOPE_OBJECTS
        )
        duplicates = events.values - distinct
        if is_event_id and duplicates <= _MAX_DUPLICATE_SHARE * events.values:
            why = "different in every event" if not duplicates else f"{duplicates:,} events repeat an earlier id"
            choices.append(((rank, len(path), path), FieldChoice(path, why)))
        elif not duplicates and len(path) == 1 and events.values >= 100 and name_words(path[-1])[-1:] == ["id"]:
            choices.append(((len(_ID_FIELD_NAMES), len(path), path), FieldChoice(path, "different in every event")))
    return min(choices, key=lambda choice: choice[0])[1] if choices else None


def _is_in_every_event(profile: FieldProfile, events: FieldProfile, kinds: set[str]) -> bool:
    return profile.values == events.values and set(profile.kinds) <= kinds


# The format of a file.

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
