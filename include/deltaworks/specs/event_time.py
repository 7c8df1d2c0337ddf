"""The time of a pipeline's events: their own, or the time at which they arrived."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from deltaworks.specs.base import FieldPaths, Problem, Spec, later_key, raise_located
from deltaworks.specs.effects import NEXT_START, OTHER_MEANING, Edit, Effect
from deltaworks.specs.times import OTHER_TIMES, PatternText, TimeForm, TimeUnit, ZoneName, form_problems

#: Of which events the time of arrival stands for their own: none, all, those that have none, or none of use.
Arrival = Literal[False, True, "when_missing", "when_unusable"]

OTHER_ARRIVAL = Edit(
    Effect.RESTART,
    "Holds for what is read from the stream's next start on. Rows that have landed keep their times; those in "
    "quarantine for want of one land by `deltaworks quarantine replay {pipeline}`.",
)
#: Keys that mean nothing without a path.
_OF_A_PATH = ("unit", "format", "zone", "max_age_days", "max_future_minutes")


class EventTimeSpec(Spec):
    """The event's time: where it is, how it is written, and how far it may lie from the arrival of the event.

    Of several paths the texts are read as one, with a blank between them. `arrival` lets the time the event arrived at
    stand for its own: of every event, of those that have none, or also of those whose time cannot be used.
    """

    path: Annotated[FieldPaths, OTHER_MEANING] = ()
    unit: Annotated[TimeUnit, OTHER_MEANING] = "iso8601"
    max_age_days: Annotated[int | None, NEXT_START] = Field(default=None, ge=1)
    max_future_minutes: Annotated[int | None, NEXT_START] = Field(default=None, ge=0)
    format: Annotated[PatternText | None, OTHER_TIMES] = later_key(None)
    zone: Annotated[ZoneName | None, OTHER_TIMES] = later_key(None)
    arrival: Annotated[Arrival, OTHER_ARRIVAL] = later_key(False)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems: list[Problem] = [((key,), text) for key, text in form_problems(self.form)]
        if self.path and self.arrival is True:
            problems.append((("arrival",), "beside a path say of which events: when_missing or when_unusable"))
        if len(self.path) > 1 and self.unit != "iso8601":
            problems.append((("unit",), "the texts of several paths are no number: declare a format, or leave it out"))
        if not self.path:
            if self.arrival is not True:
                problems.append(
                    (("path",), "say where an event has its time; or arrival: true, where events have none")
                )
            meaningless = [key for key in _OF_A_PATH if getattr(self, key) != type(self).model_fields[key].default]
            problems += [((key,), "it is about the time at a path, and none is declared") for key in meaningless]
        raise_located(problems)
        return self

    @property
    def form(self) -> TimeForm:
        """How the time is written."""
        return TimeForm(self.unit, self.format, self.zone)
