"""Proposes a pipeline from a sample of events: the fields with type, time and id, and a table per frequent event type.

The events are read twice: first to choose these fields, then to profile each event type. A table has one column per
leaf field of its events, named after its path.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from deltaworks.errors import ContractError
from deltaworks.events.events import is_valid_unicode, value_at
from deltaworks.events.inference.envelope_inference import (
    FieldChoice,
    TimeChoice,
    ambiguous_time_fields,
    choose_id_field,
    choose_time_field,
    choose_type_field,
    is_declarable,
)
from deltaworks.events.inference.field_profiles import FieldProfile, Path
from deltaworks.events.inference.inferred_types import (
    SQL_KEYWORDS,
    InferredType,
    epoch_unit,
    infer_field_type,
    name_words,
    split_words,
)
from deltaworks.events.reasons import ConversionError
from deltaworks.events.times import time_reader
from deltaworks.specs.base import format_path, path_names
from deltaworks.specs.mutation import MUTABLE_COLUMNS
from deltaworks.specs.table import DUPLICATE_COLUMN, ENVELOPE_COLUMNS, RESCUED_COLUMN, RESERVED_TABLES, REST_COLUMN
from deltaworks.specs.times import TimeFormat, parse_pattern

MAX_TABLES = 20
EVENTS_TABLE, REST_TABLE = "events", "other_events"
#: A field without column is called rare if at most this share of events has it.
_MAX_RARE_SHARE = 0.05
_MAX_ENVELOPE_COLUMNS, _MIN_ENVELOPE_SHARE = 12, 0.9
_DAY_US = 86_400_000_000
#: Beyond this number of days in the sample, tables are not partitioned by date, as partitions would have few rows.
_MAX_DATES = 500
MAX_COLUMNS = 40
#: Field names that are meaningless without the name of the enclosing object.
_VAGUE_NAMES = frozenset(
    split_words(
        "id uuid name type kind url uri href value key code status state title description label text count number "
        "size date time timestamp at ts email login slug path ref sha message body data created updated index position"
    )
)
_RESERVED = frozenset(
    {*(name for name, _ in ENVELOPE_COLUMNS), *MUTABLE_COLUMNS, RESCUED_COLUMN, REST_COLUMN, DUPLICATE_COLUMN, "org_id"}
)
_MAX_NAME_LENGTH = 63
#: Number of values that suffices to infer a field's type.
_SUFFICIENT_VALUES = 200
_ID_LIKE_KEY = re.compile(r"[0-9]+|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|[0-9a-f]{16,}")
#: An object with many fields in total, but few in each event, is a map.
_MIN_MAP_KEYS, _MAX_MAP_KEY_SHARE = 20, 0.2


@dataclass(frozen=True, slots=True)
class ProposedColumn:
    """A proposed column, and the number of the table's events that have its field."""

    name: str
    path: Path
    inferred: InferredType
    events: int


@dataclass(frozen=True, slots=True)
class ProposedColumns:
    """Proposed columns in field order, and the fields that get no column, by path with the reason."""

    columns: tuple[ProposedColumn, ...]
    omitted: Mapping[Path, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedTable:
    """A proposed table: for one event type, for all events, or for the remaining event types."""

    name: str
    events: int
    columns: ProposedColumns
    event_type: str | None = None
    catch_all: bool | Literal["rest"] = False
    keeps_undeclared_fields: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineProposal:
    """A proposed pipeline, and the number of sampled events.

    The number `rest` counts events of types that get no table of their own.
    """

    events: int
    time: TimeChoice
    type: FieldChoice | None
    id: FieldChoice | None
    tables: tuple[ProposedTable, ...]
    rest: Mapping[str, int] = field(default_factory=dict)
    partition_by_date: bool = True

    @property
    def null_words(self) -> tuple[str, ...]:
        """Texts that must be read as null for the proposed column types."""
        words = {
            word for table in self.tables for column in table.columns.columns for word in column.inferred.null_words
        }
        return tuple(sorted(words))


@dataclass(frozen=True, slots=True)
class Overrides:
    """Field paths and time pattern chosen by the user. Empty ones are inferred."""

    time: str = ""
    time_format: str = ""
    type: str = ""
    id: str = ""


NO_OVERRIDES = Overrides()


def propose_pipeline(
    read: Callable[[], Iterable[dict[str, Any]]],
    *,
    name: str,
    values_are_text: bool,
    overrides: Overrides = NO_OVERRIDES,
) -> PipelineProposal:
    """Proposes a pipeline for the events returned by `read`. It is called twice and must return the same events.

    Args:
        name: name of the pipeline, also used for its table if there is only one.
        values_are_text: all fields are texts.

    Raises:
        ContractError: EVENTS_WITHOUT_TIME.
    """
    events = FieldProfile()
    for event in read():
        events.add_value(event)
    time, kind, id_field = _choose_fields(events, overrides)
    envelope = {choice.path for choice in (time, kind, id_field) if choice is not None}
    types = Counter(_profile_at(events, kind.path).value_counts or {}) if kind is not None else Counter()
    chosen = _table_names(types) if len(types) > 1 else {}
    second_pass = _SecondPass(time, kind, chosen)
    for event in read():
        second_pass.add_event(event)
    tables = []
    if not chosen:
        columns = propose_columns(events, values_are_text=values_are_text, envelope=envelope)
        tables.append(
            ProposedTable(name=_single_table_name(name), events=events.values, columns=columns, catch_all=True)
        )
    else:
        common = propose_columns(
            events,
            values_are_text=values_are_text,
            envelope=envelope,
            max_columns=_MAX_ENVELOPE_COLUMNS,
            min_events=max(1, int(_MIN_ENVELOPE_SHARE * events.values)),
        )
        tables.append(
            ProposedTable(
                name=EVENTS_TABLE, events=events.values, columns=common, catch_all=True, keeps_undeclared_fields=False
            )
        )
        for value, profile in second_pass.profiles.items():
            columns = propose_columns(profile, values_are_text=values_are_text, envelope=envelope, all_events=events)
            tables.append(ProposedTable(name=chosen[value], events=profile.values, columns=columns, event_type=value))
        common = replace(common, omitted={})
        tables.append(ProposedTable(name=REST_TABLE, events=second_pass.rest, columns=common, catch_all="rest"))
    rest = {value: count for value, count in types.most_common() if value not in chosen} if chosen else {}
    return PipelineProposal(
        events=events.values,
        time=time,
        type=kind,
        id=id_field,
        tables=tuple(tables),
        rest=rest,
        partition_by_date=len(second_pass.dates) <= _MAX_DATES,
    )


def _choose_fields(
    events: FieldProfile, overrides: Overrides
) -> tuple[TimeChoice, FieldChoice | None, FieldChoice | None]:
    time = choose_time_field(events)
    if overrides.time:
        time = _overridden_time(events, overrides)
    if time is None:
        raise _time_error(events)
    kind, id_field = choose_type_field(events), choose_id_field(events)
    if overrides.type:
        kind = FieldChoice(path_names(overrides.type), "set by option")
    if overrides.id:
        id_field = FieldChoice(path_names(overrides.id), "set by option")
    return time, kind, id_field


def _overridden_time(events: FieldProfile, overrides: Overrides) -> TimeChoice:
    path = path_names(overrides.time)
    profile = _profile_at(events, path)
    formats = profile.time_formats or ()
    if overrides.time_format:
        form = TimeFormat(format=parse_pattern(overrides.time_format).text)
    elif len(formats) > 1:
        raise _time_error(events, [(path, formats)])
    else:
        form = TimeFormat(format=formats[0]) if formats else TimeFormat(epoch_unit(profile) or "iso8601")
    return TimeChoice(path, "set by option", form)


def _time_error(events: FieldProfile, ambiguous_fields: Sequence[tuple[Path, tuple[str, ...]]] = ()) -> ContractError:
    ambiguous_fields = ambiguous_fields or ambiguous_time_fields(events)
    if ambiguous_fields:
        path, formats = format_path(ambiguous_fields[0][0]), ambiguous_fields[0][1]
        return ContractError(
            "EVENTS_WITHOUT_TIME",
            f"{path} holds times, but all its values in {events.values:,} events match several formats: "
            f"{' and '.join(formats)}.",
            hint=f'Choose one: --time {path} --time-format "{formats[0]}".',
        )
    return ContractError(
        "EVENTS_WITHOUT_TIME",
        f"No field has a time in most of the {events.values:,} events (ISO 8601, seconds or milliseconds since "
        "1970, or a common format).",
    )


def _profile_at(events: FieldProfile, path: Path) -> FieldProfile:
    profile = events
    for name in path:
        profile = profile.fields.get(name, FieldProfile())
    return profile


class _SecondPass:
    """Collects a profile for each event type that gets its own table."""

    def __init__(self, time: TimeChoice, kind: FieldChoice | None, chosen: Mapping[str, str]) -> None:
        self._time, self._kind = time, kind
        self.profiles = {value: FieldProfile() for value in chosen}
        self.rest = 0
        self.dates: set[int] = set()

    def add_event(self, event: dict[str, Any]) -> None:
        if len(self.dates) <= _MAX_DATES:
            with contextlib.suppress(ConversionError):  # no usable time in this event
                self.dates.add(time_reader(self._time.form).instant_us(value_at(event, self._time.path)) // _DAY_US)
        if self._kind is None or not self.profiles:
            return
        value = value_at(event, self._kind.path)
        profile = self.profiles.get(value) if isinstance(value, str) else None
        if profile is None:
            self.rest += 1
        else:
            profile.add_value(event)


def _table_names(types: Counter[Any]) -> dict[str, str]:
    """Returns the most frequent event types, each with a table name."""
    names: dict[str, str] = {}
    used_names = {*RESERVED_TABLES, EVENTS_TABLE, REST_TABLE}
    usable = [value for value, _ in types.most_common() if isinstance(value, str) and value and is_valid_unicode(value)]
    for value in usable[:MAX_TABLES]:
        short = "_".join(name_words(value)) or "event"
        short = f"{short}_events" if short in SQL_KEYWORDS else short
        short = (short if short[0].isalpha() else f"event_{short}")[:56].rstrip("_")
        options = (short if number == 1 else f"{short}_{number}" for number in range(1, 1_000))
        names[value] = next(option for option in options if option not in used_names)
        used_names.add(names[value])
    return names


def _single_table_name(name: str) -> str:
    return EVENTS_TABLE if name in RESERVED_TABLES else name


def propose_columns(
    events: FieldProfile,
    *,
    values_are_text: bool,
    envelope: Collection[Path],
    all_events: FieldProfile | None = None,
    max_columns: int = MAX_COLUMNS,
    min_events: int = 1,
) -> ProposedColumns:
    """Proposes columns for events of this profile. If there are too many fields, the most frequent ones are chosen.

    Args:
        envelope: paths that are already read as event_id, event_name and event_time.
        all_events: profile of all event types, used for fields that few events of this type have.
        min_events: minimum number of events that must have a field.
    """
    convert_maps(events)
    leaves: list[tuple[Path, InferredType, int]] = []
    omitted: dict[Path, str] = {}
    path_counts = Counter(path for path, _ in events.leaves())
    for path, profile in events.leaves():
        if path in envelope or profile.values < min_events:
            continue
        leaf = _infer_leaf(path, _most_informative(path, profile, all_events), values_are_text=values_are_text)
        if path_counts[path] > 1 or any(path == other[: len(path)] != other for other in path_counts):
            leaf = "an object in some events, a value in others"
        if isinstance(leaf, str):
            omitted[path] = leaf
        else:
            leaves.append((path, leaf, profile.values))
    chosen = sorted(range(len(leaves)), key=lambda index: (-leaves[index][2], len(leaves[index][0]), index))[
        :max_columns
    ]
    beyond = f"beyond the {max_columns} columns proposed for a table"
    for index in set(range(len(leaves))) - {*chosen}:
        path, _, count = leaves[index]
        omitted[path] = "rare" if count <= _MAX_RARE_SHARE * events.values else beyond
    selected = [leaves[index] for index in sorted(chosen)]
    names = column_names([path for path, _, _ in selected])
    columns = (
        ProposedColumn(name, path, leaf, count) for name, (path, leaf, count) in zip(names, selected, strict=True)
    )
    return ProposedColumns(tuple(columns), omitted)


def _most_informative(path: Path, profile: FieldProfile, all_events: FieldProfile | None) -> FieldProfile:
    """Returns the field's profile in this event type, or in all events if this type has few values."""
    if all_events is None or profile.values >= _SUFFICIENT_VALUES:
        return profile
    candidate: FieldProfile | None = all_events
    for name in path:
        candidate = candidate.fields.get(name) if candidate is not None else None
    return profile if candidate is None or candidate.fields else candidate


def _infer_leaf(path: Path, profile: FieldProfile, *, values_are_text: bool) -> InferredType | str:
    if not is_declarable(path):
        return "its name cannot be declared as a path"
    return infer_field_type(path[-1], profile, values_are_text=values_are_text)


def convert_maps(profile: FieldProfile) -> None:
    """Converts objects with data as keys, such as ids, days or names, to maps."""
    for inner in profile.fields.values():
        convert_maps(inner)
        keys = len(inner.fields)
        if not keys:
            continue
        present = sum(field.values for field in inner.fields.values()) / (keys * max(1, inner.values))
        many = keys >= _MIN_MAP_KEYS and present <= _MAX_MAP_KEY_SHARE
        if many or all(_ID_LIKE_KEY.fullmatch(key) for key in inner.fields):
            inner.convert_to_map()


def column_names(paths: Sequence[Path]) -> list[str]:
    """Returns a unique column name per path: its last word, extended by preceding words if vague or already used."""
    names: list[str] = []
    used_names = set(_RESERVED)
    shortest = Counter(_snake_case(path[-1:]) for path in paths)
    for path in paths:
        short = _snake_case(path[-1:])
        first = 2 if len(path) > 1 and (short in _VAGUE_NAMES or shortest[short] > 1) else 1
        options = [_snake_case(path[-length:]) for length in range(min(first, len(path)), len(path) + 1)]
        options += [f"{options[-1][: _MAX_NAME_LENGTH - 4]}_{number}" for number in range(2, 1_000)]
        name = next(option for option in options if option not in used_names)
        used_names.add(name)
        names.append(name)
    return names


def _snake_case(path: Path) -> str:
    words = "_".join(re.sub(r"[^a-z0-9]", "", word) for part in path for word in name_words(part))
    name = re.sub(r"_+", "_", words).strip("_") or "field"
    name = f"{name}_field" if name in SQL_KEYWORDS else name
    return (name if name[0].isalpha() else f"f_{name}")[:_MAX_NAME_LENGTH].rstrip("_")
