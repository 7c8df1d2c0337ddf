"""What answers a pipeline gives: gold tables built by SQL, which rows count once, and when they are rebuilt; the small
tables they read that are kept in files, and views over all tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal, Protocol

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from deltaworks.specs.base import NAME_PATTERN, Name, Spec, as_tuple, exclude_if_default
from deltaworks.specs.schedules import Schedule
from deltaworks.specs.spec_change_effects import IMMEDIATE, Edit, Effect
from deltaworks.specs.types import TypeText


def _check_input(value: str) -> str:
    parts = value.split(".")
    if len(parts) > 2 or not all(NAME_PATTERN.match(part) for part in parts):
        raise ValueError("write the name of a table here, or pipeline.table for a gold table of another pipeline")
    return value


#: A table of the pipeline, or `pipeline.table`: a gold table of another one.
GoldInput = Annotated[str, AfterValidator(_check_input)]

_NEXT_BUILD = Edit(Effect.SAFE, "Nothing: the next gold build sees it and rebuilds what follows from it.")
_GOLD_TABLES = Edit(
    Effect.SAFE,
    "Nothing: the next gold build sees it and rebuilds what follows from it. What the stream builds itself, by "
    "`refresh_seconds`, holds from its next start.",
)


class DedupeSpec(Spec):
    """Producer duplicates: one row per key is kept, the first to arrive."""

    by: str = "event_id"
    within_days: int = Field(default=1, ge=0, description="copies may lie this many dates apart")
    within_hours: int | None = exclude_if_default(
        None, ge=0, description="the same for tables with a grain: copies may lie this many hours apart"
    )


class AffectsSpec(Spec):
    """Which dates of a gold table change when a date of its input changes; which hours, in one with a grain."""

    days: tuple[int, ...] = (0,)
    hours: tuple[int, ...] = exclude_if_default((), description="of a table with a grain, instead of days")


class GrainSpec(Spec):
    """What is rebuilt of a date: the hours that changed, by a timestamp of the answer that lies in its row's date."""

    column: str
    part: Literal["hour"] = "hour"


#: What a change of one input affects: dates near its own, all dates from its own on, or all there are.
InputAffects = AffectsSpec | Literal["all", "onwards"]


def _affects_form(declared: Any) -> str:
    by_input = isinstance(declared, Mapping) and any(
        isinstance(value, str | Mapping | AffectsSpec) for value in declared.values()
    )
    return "by_input" if by_input else "whole"


Affects = Annotated[
    Annotated[AffectsSpec | Literal["all", "same"], Tag("whole")]
    | Annotated[Mapping[Name, InputAffects], Tag("by_input")],
    Discriminator(_affects_form),
]


class IntervalsSpec(Spec):
    """Rows that say what held when. Of each value of `by` they follow one another without a gap: `start` is part of an
    interval, `end` is not, and is the start of the next; only the last one may have no end.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    by: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = Field(min_length=1)
    start: str = Field(alias="from")
    end: str = Field(alias="to")


class ChecksSpec(Spec):
    """What has to hold for an answer before it is published, and how old the table may become.

    Counts are of the part that a build writes. `max_drop` is a share: a partition that would have fewer rows than
    before by more than it is taken for half-built.
    """

    min_rows: int = Field(default=0, ge=0)
    unique: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()
    not_null: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()
    max_drop: float | None = Field(default=None, gt=0, lt=1)
    max_age_minutes: float | None = Field(default=None, gt=0)
    intervals: IntervalsSpec | None = exclude_if_default(
        None, description="rows say what held from when to when, without gaps"
    )

    @property
    def has_result_checks(self) -> bool:
        """Whether there is anything to look at in an answer."""
        return bool(self.min_rows or self.unique or self.not_null or self.max_drop or self.intervals)


class GoldTableSpec(Spec):
    """A table of answers, built by SQL from what it reads: bronze tables of the pipeline, other gold tables of it, and
    gold tables of other pipelines as `pipeline.table`, which SQL calls `pipeline__table`.

    With `affects: same` its inputs are partitioned by its own partition column, and rows of a value change the part of
    that value alone. `affects` may say for each input which dates a change of it affects, and in a table with a grain
    which hours.
    """

    name: Name
    sql: str
    description: str = ""
    reads: tuple[GoldInput, ...] = Field(min_length=1)
    partition_by: str
    affects: Affects = AffectsSpec.defaults()
    checks: ChecksSpec = ChecksSpec.defaults()
    grain: GrainSpec | None = exclude_if_default(
        None, description="rebuild the hours that changed instead of whole dates"
    )
    refresh_seconds: float | None = exclude_if_default(
        None, ge=15, description="the stream builds it this often, wherever its inputs changed"
    )

    @model_validator(mode="before")
    @classmethod
    def _affects_hours(cls, declared: Any) -> Any:
        """With a grain, an hour that changed affects itself, where nothing else is declared."""
        if isinstance(declared, Mapping) and declared.get("grain") is not None and declared.get("affects") is None:
            return {**declared, "affects": {"hours": (0,)}}
        return declared

    @property
    def is_partitioned_by_date(self) -> bool:
        """Whether it is partitioned by a date, so that some of its dates can be rebuilt."""
        return not isinstance(self.affects, str)

    def affects_for_input(self, name: str) -> InputAffects | Literal["same"]:
        """What a change of the input called `name` affects."""
        if isinstance(self.affects, str | AffectsSpec):
            return self.affects
        return self.affects.get(name, AffectsSpec())


class GoldSpec(Spec):
    """The pipeline's answers and when they are rebuilt."""

    schedule: Annotated[Schedule | None, IMMEDIATE] = None
    deadline_minutes: Annotated[float | None, IMMEDIATE] = Field(
        default=None, gt=0, description="an alert is raised where a run has not ended this long after it was queued"
    )
    dedupe: Annotated[DedupeSpec | None, _NEXT_BUILD] = None
    tables: Annotated[tuple[GoldTableSpec, ...], _GOLD_TABLES] = ()

    @property
    def stream_refreshed_tables(self) -> tuple[GoldTableSpec, ...]:
        """The tables that the stream builds too, each after those of them that it reads."""
        return tuple(table for table in build_order(self.tables) if table.refresh_seconds is not None)

    @property
    def cross_pipeline_inputs(self) -> tuple[tuple[str, str], ...]:
        """The gold tables of other pipelines that are read: pipeline and table, sorted."""
        reads = {
            key_path
            for table in self.tables
            for name in table.reads
            if (key_path := cross_pipeline_table(name)) is not None
        }
        return tuple(sorted(reads))


def cross_pipeline_table(read: str) -> tuple[str, str] | None:
    """Pipeline and name of a table that is another pipeline's; None for one of the pipeline itself."""
    pipeline, separator, table = read.partition(".")
    return (pipeline, table) if separator else None


def view_name(read: str) -> str:
    """What SQL calls a table that is read."""
    return read.replace(".", "__")


#: A file of a reference table that is larger is no small table.
MAX_REFERENCE_BYTES = 16 << 20


class ReferenceColumn(Spec):
    """A column of a reference table, by the name it has in the file's first line."""

    name: Name
    type: TypeText
    description: str = ""


class ReferenceSpec(Spec):
    """A small table kept in a CSV file: one in the pipeline's folder, or an object of the lake.

    Gold builds take it over as a whole where it differs from the table. `effective_date` is the date from which on a row
    matters, for gold tables that it affects onwards.
    """

    name: Name
    file: str | None = Field(default=None, description="a path in the pipeline's folder")
    object: str | None = Field(default=None, description="a key in the lake")
    key: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = Field(min_length=1)
    columns: tuple[ReferenceColumn, ...] = Field(min_length=1)
    effective_date: str | None = None
    description: str = ""

    def column_types(self) -> dict[str, str]:
        """The columns with their types, as they are in the file and the table."""
        return {column.name: column.type for column in self.columns}


class AnnounceSpec(Spec):
    """Where the answer of a view is published whenever it has changed: a channel of the environment, of kind `sns`."""

    channel: Name
    every_seconds: float = Field(default=5, ge=1, le=3600, description="how often the stream looks for another answer")


class ViewSpec(Spec):
    """A question that is kept: SQL in DuckDB's dialect over tables and other views of the pipeline."""

    name: Name
    sql: str
    reads: tuple[Name, ...] = Field(min_length=1)
    description: str = ""
    announce: AnnounceSpec | None = exclude_if_default(
        None, description="the stream publishes its answer when it has changed"
    )


class _Reader(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def reads(self) -> tuple[str, ...]: ...


def view_order(views: Iterable[ViewSpec]) -> list[ViewSpec]:
    """The views, each after those it reads, which are in no circle."""
    declared = {view.name: view for view in views}
    return [declared[name] for name in _topological_sorter(declared).static_order()]


def build_order(tables: Iterable[GoldTableSpec]) -> list[GoldTableSpec]:
    """The tables, each after those it reads, else as they are declared.

    Raises:
        ValueError: tables read each other in a circle, which is named.
    """
    declared = {table.name: table for table in tables}
    cycle = find_cycle(declared.values())
    if cycle:
        raise ValueError(f"gold tables read each other in a circle: {' reads '.join(cycle)}")
    return [declared[name] for name in _topological_sorter(declared).static_order()]


def find_cycle(tables: Iterable[_Reader]) -> list[str]:
    """The names of tables, or of views, that read each other in a circle, each reading the next, the first one last
    again; none where there is no circle."""
    sorter = _topological_sorter({table.name: table for table in tables})
    try:
        sorter.prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def _topological_sorter(declared: Mapping[str, _Reader]) -> TopologicalSorter[str]:
    return TopologicalSorter(
        {name: [read for read in table.reads if read in declared] for name, table in declared.items()}
    )
