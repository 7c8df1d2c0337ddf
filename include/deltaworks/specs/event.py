"""What an event of a pipeline has: a wrapper it comes in, a name, a time and an id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from deltaworks.specs.base import FieldPath, FieldPaths, Problem, Spec, as_tuple, exclude_if_default, raise_problems
from deltaworks.specs.spec_change_effects import CHANGES_MEANING, NEXT_START, Edit, Effect
from deltaworks.specs.times import CHANGES_TIMES, PatternText, TimeFormat, TimeUnit, ZoneName, time_format_problems

if TYPE_CHECKING:
    from deltaworks.specs.pipeline import PipelineSpec

#: Of which events the time of arrival stands for their own: none, all, those that have none, or none of use.
Arrival = Literal[False, True, "when_missing", "when_unusable"]

_ARRIVAL_CHANGE = Edit(
    Effect.RESTART,
    "Holds for what is read from the stream's next start on. Rows that have landed keep their times; those in "
    "quarantine for want of one land by `deltaworks quarantine replay {pipeline}`.",
)
#: Names of what the engine adds to an event: `events.origins`.
_ENGINE_FIELDS = ("_partition", "_record")
#: Keys that mean nothing without a path.
_PATH_KEYS = ("unit", "format", "zone", "max_age_days", "max_future_minutes")


class EventTimeSpec(Spec):
    """The event's time: where it is, how it is written, and how far it may lie from the arrival of the event.

    Of several paths the texts are read as one, with a blank between them. `arrival` lets the time the event arrived at
    stand for its own: of every event, of those that have none, or also of those whose time cannot be used.
    """

    path: Annotated[FieldPaths, CHANGES_MEANING] = ()
    unit: Annotated[TimeUnit, CHANGES_MEANING] = "iso8601"
    max_age_days: Annotated[int | None, NEXT_START] = Field(default=None, ge=1)
    max_future_minutes: Annotated[int | None, NEXT_START] = Field(default=None, ge=0)
    format: Annotated[PatternText | None, CHANGES_TIMES] = exclude_if_default(None)
    zone: Annotated[ZoneName | None, CHANGES_TIMES] = exclude_if_default(None)
    arrival: Annotated[Arrival, _ARRIVAL_CHANGE] = exclude_if_default(False)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems: list[Problem] = [((key,), text) for key, text in time_format_problems(self.time_format)]
        if self.path and self.arrival is True:
            problems.append((("arrival",), "beside a path say of which events: when_missing or when_unusable"))
        if len(self.path) > 1 and self.unit != "iso8601":
            problems.append((("unit",), "the texts of several paths are no number: declare a format, or leave it out"))
        if not self.path:
            if self.arrival is not True:
                problems.append(
                    (("path",), "say where an event has its time; or arrival: true, where events have none")
                )
            meaningless = [key for key in _PATH_KEYS if getattr(self, key) != type(self).model_fields[key].default]
            problems += [((key,), "it is about the time at a path, and none is declared") for key in meaningless]
        raise_problems(problems)
        return self

    @property
    def time_format(self) -> TimeFormat:
        """How the time is written."""
        return TimeFormat(self.unit, self.format, self.zone)


class UnwrapSpec(Spec):
    """Where the event sits inside a wrapper; a string there is read as JSON.

    What lies at the paths of `keep` in the wrapper is in each of its events, at the same paths.
    """

    path: FieldPath
    keep: Annotated[tuple[FieldPath, ...], BeforeValidator(as_tuple)] = exclude_if_default(
        (), description="fields of the wrapper that become fields of each of its events"
    )


class EventNameSpec(Spec):
    """The event's name: found at a path, or the same for every event."""

    path: FieldPath | None = None
    constant: str | None = None

    @model_validator(mode="after")
    def _check_one_source(self) -> Self:
        if (self.path is None) == (self.constant is None):
            raise ValueError("give either path or constant")
        return self


class EventSpec(Spec):
    """What every event of the pipeline has: a name, a time and, where producers send one, an id."""

    name: Annotated[EventNameSpec, CHANGES_MEANING]
    time: EventTimeSpec
    id: Annotated[tuple[FieldPath, ...], BeforeValidator(as_tuple), CHANGES_MEANING] = ()


def unwrap_problems(pipeline: PipelineSpec) -> Iterator[Problem]:
    """What does not fit between the wrapper of events, the source that gives them, and what is read of them."""
    unwrap, source = pipeline.unwrap, pipeline.source
    if unwrap is None:
        return
    if source.kind == "delta":
        yield ("unwrap",), "unwrap is for objects and records; the rows of a table have no wrapper"
    elif source.format != "json":
        yield ("unwrap",), f"unwrap is for format: json; {source.format} has no wrapper"
    if getattr(source, "tombstones", None) == "event":
        yield (
            ("source", "tombstones"),
            "tombstones: event with unwrap: a record without value has nothing to unwrap",
        )
    yield from _keep_problems(pipeline, unwrap)


def _keep_problems(pipeline: PipelineSpec, unwrap: UnwrapSpec) -> Iterator[Problem]:
    """Fields that cannot be kept: the event itself, one twice, or one whose name an event has of its own."""
    read = _paths_read_from_events(pipeline)
    for index, path in enumerate(unwrap.keep):
        key_path = ("unwrap", "keep", index)
        if _overlap(path, unwrap.path):
            yield (
                key_path,
                f"{path} and {unwrap.path}, where the events are, are one in the other; name what is beside it",
            )
        twice = next((other for other in unwrap.keep[:index] if _overlap(path, other)), None)
        if twice is not None:
            yield key_path, f"{path} and {twice} are one in the other; leave one of them out"
        name = path.split(".")[0]
        if name in _ENGINE_FIELDS:
            yield key_path, f"{name} is a field that the engine adds to events; it cannot be kept"
        own = next(
            (
                other
                for other in read
                if other.split(".")[0] == name and not any(_overlap(other, kept) for kept in unwrap.keep)
            ),
            None,
        )
        if own is not None:
            yield (
                key_path,
                f"{own} is read of the events, which therefore have {name!r} themselves: an event would have it "
                f"twice. Keep {own} too, if it is of the wrapper",
            )


def _overlap(path: str, other: str) -> bool:
    return f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.")


def _paths_read_from_events(pipeline: PipelineSpec) -> list[str]:
    """Every path at which something is read of an event."""
    event = pipeline.event
    paths = [*event.time.path, *event.id, *([event.name.path] if event.name.path is not None else [])]
    for table in pipeline.tables:
        paths += [*table.when, *(column.path for column in table.columns)]
    return paths
