"""Proposes a pipeline from a sample of events: the fields with type, time and id, and a table per frequent event type.

The events are read twice: first to choose these fields, then to profile each event type.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from deltaworks.errors import ContractError
from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.events import is_valid_unicode, value_at
from deltaworks.events.inference.envelope_inference import (
    FieldChoice,
    TimeChoice,
    ambiguous_time_fields,
    choose_id_field,
    choose_time_field,
    choose_type_field,
)
from deltaworks.events.inference.field_profiles import FieldProfile, Path
from deltaworks.events.inference.inferred_columns import ProposedColumns, propose_columns
from deltaworks.events.inference.inferred_types import SQL_KEYWORDS, epoch_unit, name_words
from deltaworks.events.times import time_reader
from deltaworks.specs.table import RESERVED_TABLES
from deltaworks.specs.times import TimeFormat, parse_pattern

MAX_TABLES = 20
EVENTS_TABLE, REST_TABLE = "events", "other_events"
_MAX_ENVELOPE_COLUMNS, _MIN_ENVELOPE_SHARE = 12, 0.9
_DAY_US = 86_400_000_000
#: Beyond this number of days in the sample, tables are not partitioned by date, as partitions would have few rows.
_MAX_DATES = 500


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
        kind = FieldChoice(tuple(overrides.type.split(".")), "set by option")
    if overrides.id:
        id_field = FieldChoice(tuple(overrides.id.split(".")), "set by option")
    return time, kind, id_field


def _overridden_time(events: FieldProfile, overrides: Overrides) -> TimeChoice:
    path = tuple(overrides.time.split("."))
    profile = _profile_at(events, path)
    formats = profile.time_formats or ()
    if overrides.time_format:
        form = TimeFormat(format=parse_pattern(overrides.time_format).text)
    elif len(formats) > 1:
        raise _time_error(events, [(path, formats)])
    else:
        form = TimeFormat(format=formats[0]) if formats else TimeFormat(epoch_unit(profile) or "iso8601")
    return TimeChoice(path, "set by option", form, events.values - profile.values)


def _time_error(events: FieldProfile, ambiguous_fields: Sequence[tuple[Path, tuple[str, ...]]] = ()) -> ContractError:
    ambiguous_fields = ambiguous_fields or ambiguous_time_fields(events)
    if ambiguous_fields:
        path, formats = ".".join(ambiguous_fields[0][0]), ambiguous_fields[0][1]
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
