"""Spec of a pipeline's events: the wrapper around them, and the paths of name, time and id."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from deltaworks.specs.base import FieldPath, FieldPaths, Problem, Spec, as_tuple, raise_problems
from deltaworks.specs.spec_change_effects import CHANGES_MEANING, NEXT_START, Edit, Effect
from deltaworks.specs.times import CHANGES_TIMES, PatternText, TimeFormat, TimeUnit, ZoneName, time_format_problems

#: Which events get their arrival time as event time: none, all, events without a time, or events without a usable time.
Arrival = Literal[False, True, "when_missing", "when_unusable"]

_ARRIVAL_CHANGE = Edit(
    Effect.RESTART,
    "Applies from the stream's next start. Committed rows keep their times; `deltaworks quarantine replay "
    "{pipeline}` commits rows that were quarantined without a time.",
)
#: Keys that require a path.
_PATH_KEYS = ("unit", "format", "zone", "max_age_days", "max_future_minutes")


class EventTimeSpec(Spec):
    """Event time: its path, its format, and how far it may be from the arrival time.

    Values of several paths are joined with a space. The key `arrival` uses the arrival time as event time: for all
    events, for events without a time, or also for events whose time is unusable.
    """

    path: Annotated[FieldPaths, CHANGES_MEANING] = ()
    unit: Annotated[TimeUnit, CHANGES_MEANING] = "iso8601"
    max_age_days: Annotated[int | None, NEXT_START] = Field(default=None, ge=1)
    max_future_minutes: Annotated[int | None, NEXT_START] = Field(default=None, ge=0)
    format: Annotated[PatternText | None, CHANGES_TIMES] = None
    zone: Annotated[ZoneName | None, CHANGES_TIMES] = None
    arrival: Annotated[Arrival, _ARRIVAL_CHANGE] = False

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        problems: list[Problem] = [((key,), text) for key, text in time_format_problems(self.time_format)]
        if self.path and self.arrival is True:
            problems.append((("arrival",), "with a path, write arrival: when_missing or when_unusable"))
        if len(self.path) > 1 and self.unit != "iso8601":
            problems.append((("unit",), "several paths are joined to a text: declare a format, or remove the unit"))
        if not self.path:
            if self.arrival is not True:
                problems.append((("path",), "give the path of the time; or arrival: true for events without one"))
            unused_keys = [key for key in _PATH_KEYS if getattr(self, key) != type(self).model_fields[key].default]
            problems += [((key,), "it requires a path, and none is declared") for key in unused_keys]
        raise_problems(problems)
        return self

    @property
    def time_format(self) -> TimeFormat:
        """The format of the event time."""
        return TimeFormat(self.unit, self.format, self.zone)


class UnwrapSpec(Spec):
    """The path of the events inside a wrapper object. A string at that path is parsed as JSON.

    Wrapper fields in `keep` are copied to each event at the same paths.
    """

    path: FieldPath
    keep: Annotated[tuple[FieldPath, ...], BeforeValidator(as_tuple)] = Field(
        default=(), description="wrapper fields that are copied to each event"
    )


class EventNameSpec(Spec):
    """The event's name: a path, or a constant for all events."""

    path: FieldPath | None = None
    constant: str | None = None

    @model_validator(mode="after")
    def _check_one_source(self) -> Self:
        if (self.path is None) == (self.constant is None):
            raise ValueError("give either path or constant")
        return self


class EventSpec(Spec):
    """The paths of an event's name and time and, if producers send one, its id."""

    name: Annotated[EventNameSpec, CHANGES_MEANING]
    time: EventTimeSpec
    id: Annotated[tuple[FieldPath, ...], BeforeValidator(as_tuple), CHANGES_MEANING] = ()
