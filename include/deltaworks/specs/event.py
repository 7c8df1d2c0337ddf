"""Spec of a pipeline's events: the wrapper around them, and the paths of name, time and id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from deltaworks.specs.base import FieldPath, FieldPaths, Problem, Spec, as_tuple, raise_problems
from deltaworks.specs.spec_change_effects import CHANGES_MEANING, NEXT_START, Edit, Effect
from deltaworks.specs.times import CHANGES_TIMES, PatternText, TimeFormat, TimeUnit, ZoneName, time_format_problems

if TYPE_CHECKING:
    from deltaworks.specs.pipeline import PipelineSpec

#: Which events get their arrival time as event time: none, all, events without a time, or events without a usable time.
Arrival = Literal[False, True, "when_missing", "when_unusable"]

_ARRIVAL_CHANGE = Edit(
    Effect.RESTART,
    "Applies from the stream's next start. Committed rows keep their times; `deltaworks quarantine replay "
    "{pipeline}` commits rows that were quarantined without a time.",
)
#: Fields that the engine adds to events; see `events.source_fields`.
_ENGINE_FIELDS = ("_partition", "_record")
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


def unwrap_problems(pipeline: PipelineSpec) -> Iterator[Problem]:
    """Yields conflicts between the wrapper, the source and the event's paths."""
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
            "tombstones: event cannot be combined with unwrap: a record without value has nothing to unwrap",
        )
    yield from _keep_problems(pipeline, unwrap)


def _keep_problems(pipeline: PipelineSpec, unwrap: UnwrapSpec) -> Iterator[Problem]:
    """Yields invalid paths in `keep`: the path of the events, duplicates, and names of an event's own fields."""
    read = _paths_read_from_events(pipeline)
    for index, path in enumerate(unwrap.keep):
        key_path = ("unwrap", "keep", index)
        if _overlap(path, unwrap.path):
            yield (
                key_path,
                f"{path} overlaps with {unwrap.path}, the path of the events; use another field of the wrapper",
            )
        duplicate = next((other for other in unwrap.keep[:index] if _overlap(path, other)), None)
        if duplicate is not None:
            yield key_path, f"{path} and {duplicate} overlap; remove one of them"
        name = path.split(".")[0]
        if name in _ENGINE_FIELDS:
            yield key_path, f"{name} is added to events by the engine and cannot be kept"
        event_path = next(
            (
                other
                for other in read
                if other.split(".")[0] == name and not any(_overlap(other, kept) for kept in unwrap.keep)
            ),
            None,
        )
        if event_path is not None:
            yield (
                key_path,
                f"{event_path} is read from events, which therefore have their own {name!r}. If it is a wrapper field, "
                f"keep {event_path} too",
            )


def _overlap(path: str, other: str) -> bool:
    return f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.")


def _paths_read_from_events(pipeline: PipelineSpec) -> list[str]:
    """Returns all paths that are read from events."""
    event = pipeline.event
    paths = [*event.time.path, *event.id, *([event.name.path] if event.name.path is not None else [])]
    for table in pipeline.tables:
        paths += [*table.when, *(column.path for column in table.columns)]
    return paths
