"""Chooses the fields with an event's type, time and id, by their values and names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deltaworks.events.inference.field_profiles import (
    DATE,
    DIGITS,
    FLOAT64,
    INSTANT,
    INT53,
    INT64,
    NULL,
    PLAIN,
    TEXT,
    FieldProfile,
    Path,
)
from deltaworks.events.inference.inferred_types import (
    epoch_unit,
    is_time_name,
    matching_time_formats,
    name_words,
    split_words,
)
from deltaworks.events.inference.time_formats import is_date_only
from deltaworks.specs.base import check_field_path
from deltaworks.specs.times import ISO_8601, TimeFormat

_TYPE_FIELD_NAMES = split_words(
    "event_name event_type type event kind action topic detail_type op operation typename name category"
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
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class TimeChoice(FieldChoice):
    """The chosen time field and its format."""

    form: TimeFormat


def is_declarable(path: Path) -> bool:
    """Returns whether a path can be written in a declaration; names with dots, slashes or outer spaces cannot."""
    if not all(part and not {".", "/"} & {*part} and part == part.strip() and part.isprintable() for part in path):
        return False
    try:
        check_field_path(".".join(path))
    except ValueError:
        return False
    return True


def _candidates(events: FieldProfile, max_depth: int) -> Iterator[tuple[Path, FieldProfile]]:
    for path, profile in events.leaves():
        if len(path) <= max_depth and is_declarable(path) and path[0] not in ("_record", "_partition"):
            yield path, profile


def _name_rank(path: Path, names: Sequence[str]) -> int | None:
    name = "_".join(name_words(path[-1]))
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
        rank = _name_rank(path, _TIME_FIELD_NAMES)
        only_dates = set(profile.text_forms) == {DATE} or (form.format is not None and is_date_only(form.format))
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
