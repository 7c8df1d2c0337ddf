"""Which fields are the type, the time and the id of events: chosen by what they hold, and by what they are called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deltaworks.events.inference.column_types import FLOAT64, INT53, INT64, NULL, TEXT
from deltaworks.events.inference.field_profiles import DATE, DIGITS, INSTANT, PLAIN, Path, Profile
from deltaworks.events.inference.inferred_types import epoch_unit, is_time_name, time_formats, words_in, words_of
from deltaworks.events.inference.time_formats import is_of_date_alone
from deltaworks.specs.base import check_field_path
from deltaworks.specs.times import ISO_8601, TimeFormat

_TYPE_NAMES = words_in(
    "event_name event_type type event kind action topic detail_type op operation typename name category"
)
_TIME_NAMES = words_in(
    "event_time event_timestamp event_tstamp occurred_at happened_at timestamp time datetime ts derived_tstamp "
    "collector_tstamp at sent_at created_at created received_at date root_tstamp"
)
_ID_NAMES = words_in("event_id event_uuid id uuid guid message_id delivery_id insert_id record_id request_id root_id")
#: Objects around an event's own fields, below which an `id` is the event's.
_ENVELOPES = frozenset({"event", "meta", "metadata", "header", "headers", "envelope", "context"})
_DEEPEST_TYPE, _DEEPEST = 2, 3
_MOST_TYPES = 500
#: The share of ids that may be copies, which producers send, and of events that may lack a time.
_MOST_COPIES, _MOST_WITHOUT_TIME = 0.02, 0.5


@dataclass(frozen=True, slots=True)
class FieldChoice:
    """A field by its path, and why it was chosen."""

    path: Path
    why: str

    @property
    def text(self) -> str:
        """The path as it is declared."""
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class TimeChoice(FieldChoice):
    """The field of the time and how it is written; `absent` events lack it."""

    form: TimeFormat
    absent: int = 0


def is_declarable(path: Path) -> bool:
    """Whether a path can be written: names with dots or slashes in them, or with spaces around them, cannot."""
    if not all(part and not {".", "/"} & {*part} and part == part.strip() and part.isprintable() for part in path):
        return False
    try:
        check_field_path(".".join(path))
    except ValueError:
        return False
    return True


def _candidates(events: Profile, deepest: int) -> Iterator[tuple[Path, Profile]]:
    for path, profile in events.leaves():
        if len(path) <= deepest and is_declarable(path) and path[0] not in ("_record", "_partition"):
            yield path, profile


def _rank(path: Path, names: Sequence[str]) -> int | None:
    name = "_".join(words_of(path[-1]))
    return names.index(name) if name in names else None


def type_choice(events: Profile) -> FieldChoice | None:
    """The field that says of what type an event is: a text in every event, of which there are few."""
    choices = []
    for path, profile in _candidates(events, _DEEPEST_TYPE):
        rank, distinct = _rank(path, _TYPE_NAMES), profile.distinct
        if rank is None or distinct is None or not _in_every(profile, events, {TEXT}) or "" in profile.null_words:
            continue
        few = distinct <= max(20, 0.3 * events.values)
        if distinct <= _MOST_TYPES and few and (_TYPE_NAMES[rank] != "name" or len(path) == 1):
            choices.append(((distinct < 2, rank, len(path), path), FieldChoice(path, f"{distinct} different values")))
    return min(choices, key=lambda choice: choice[0])[1] if choices else None


def time_choice(events: Profile) -> TimeChoice | None:
    """The field that says when an event happened; the one most have where none is in all of them."""
    choices = []
    for path, profile in _candidates(events, _DEEPEST):
        form = _time_form(path[-1], profile)
        absent = events.values - profile.values
        if form is None or absent > _MOST_WITHOUT_TIME * events.values:
            continue
        rank = _rank(path, _TIME_NAMES)
        only_dates = set(profile.forms) == {DATE} or (form.format is not None and is_of_date_alone(form.format))
        order = (absent, only_dates, len(_TIME_NAMES) if rank is None else rank, len(path), path)
        why = "a time in every event" if not absent else f"{absent:,} events have none and go to quarantine"
        choices.append((order, TimeChoice(path, why, form, absent)))
    return min(choices, key=lambda choice: choice[0])[1] if choices else None


def unclear_times(events: Profile) -> list[tuple[Path, tuple[str, ...]]]:
    """Fields that most events have and whose texts fit several patterns of times, with these."""
    fields = ((path, profile, _formats(path[-1], profile)) for path, profile in _candidates(events, _DEEPEST))
    return [
        (path, formats)
        for path, profile, formats in fields
        if len(formats) > 1 and events.values - profile.values <= _MOST_WITHOUT_TIME * events.values
    ]


def _formats(name: str, profile: Profile) -> tuple[str, ...]:
    of_texts = set(profile.kinds) - {NULL} == {TEXT} and set(profile.forms) == {PLAIN}
    return time_formats(name, profile) if of_texts else ()


def _time_form(name: str, profile: Profile) -> TimeFormat | None:
    """The form of which all values of the field are times."""
    kinds = set(profile.kinds) - {NULL}
    forms = set(profile.forms)
    if kinds == {TEXT} and forms and forms <= {INSTANT, DATE}:
        return ISO_8601
    formats = _formats(name, profile)
    if len(formats) == 1:
        return TimeFormat(format=formats[0])
    of_numbers = kinds and (kinds <= {INT53, INT64, FLOAT64} or (kinds == {TEXT} and forms == {DIGITS}))
    unit = epoch_unit(profile) if of_numbers and is_time_name(name) else None
    return None if unit is None else TimeFormat(unit)


def id_choice(events: Profile) -> FieldChoice | None:
    """The field that tells events apart: in every event, and different in each but for copies."""
    choices = []
    for path, profile in _candidates(events, _DEEPEST):
        if not _in_every(profile, events, {TEXT, INT53, INT64}) or profile.null_words:
            continue
        rank, distinct = _rank(path, _ID_NAMES), profile.distinct
        if distinct is None or _time_form(path[-1], profile) is not None:
            continue
        of_event = rank is not None and (
            len(path) == 1 or _ID_NAMES[rank] != "id" or "_".join(words_of(path[-2])) in _ENVELOPES
        )
        copies = events.values - distinct
        if of_event and copies <= _MOST_COPIES * events.values:
            why = "different in every event" if not copies else f"{copies:,} events come with an id that came before"
            choices.append(((rank, len(path), path), FieldChoice(path, why)))
        elif not copies and len(path) == 1 and events.values >= 100 and words_of(path[-1])[-1:] == ["id"]:
            choices.append(((len(_ID_NAMES), len(path), path), FieldChoice(path, "different in every event")))
    return min(choices, key=lambda choice: choice[0])[1] if choices else None


def _in_every(profile: Profile, events: Profile, kinds: set[str]) -> bool:
    return profile.values == events.values and set(profile.kinds) <= kinds
