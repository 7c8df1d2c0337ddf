"""Specs of gold tables, of reference tables in files, and of views."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Final, Literal, Protocol

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from deltaworks.specs.base import NAME_PATTERN, Duration, Name, Spec, as_tuple
from deltaworks.specs.schedules import cron_within
from deltaworks.specs.spec_change_effects import IMMEDIATE, Edit, Effect
from deltaworks.specs.types import TypeText


def _check_input(value: str) -> str:
    parts = value.split(".")
    if len(parts) > 2 or not all(NAME_PATTERN.match(part) for part in parts):
        raise ValueError("write the name of a table, or pipeline.table for a gold table of another pipeline")
    return value


#: A table of this pipeline, or `pipeline.table`: a gold table of another pipeline.
GoldInput = Annotated[str, AfterValidator(_check_input)]

_NEXT_BUILD = Edit(Effect.SAFE, "Nothing: the next gold build rebuilds all affected tables.")
_GOLD_TABLES = Edit(
    Effect.SAFE,
    "Nothing: the next gold build rebuilds all affected tables. Tables that the stream builds (`lag`): from its next "
    "start.",
)
#: Tables with a shorter lag are built by the stream, as a JVM per build would cost more than the build.
STREAM_LAG: Final = dt.timedelta(minutes=5)
#: How often the gold DAG looks at tables of the stream, if it has no others: the stream may be stopped.
_FALLBACK_INTERVAL: Final = dt.timedelta(minutes=15)
_MIN_LAG: Final = dt.timedelta(seconds=5)


def _check_lag(lag: dt.timedelta) -> dt.timedelta:
    if lag < _MIN_LAG:
        raise ValueError("a look at gold takes seconds; write at least 5s")
    return lag


#: How long after rows were committed a build of a gold table begins at the latest.
Lag = Annotated[Duration, AfterValidator(_check_lag)]


class DedupeSpec(Spec):
    """Deduplication of events: of the events with the same key, the one that arrived first is used."""

    by: str = "event_id"
    within_days: int = Field(default=1, ge=0, description="dedupe window in dates")
    within_hours: int | None = Field(default=None, ge=0, description="dedupe window in hours, for tables with a grain")


class AffectsSpec(Spec):
    """The dates of a gold table to rebuild after a change of one date of its input; hours for a table with a grain."""

    days: tuple[int, ...] = (0,)
    hours: tuple[int, ...] = Field(default=(), description="for tables with a grain, instead of days")


class GrainSpec(Spec):
    """Rebuilds only the changed hours of a date. `column` is a timestamp of the result that lies on the row's date."""

    column: str
    part: Literal["hour"] = "hour"


#: What an input's change rebuilds: dates near it, all dates from it on, or the complete table.
InputAffects = AffectsSpec | Literal["all", "onwards"]


def _affects_type(declared: Any) -> str:
    by_input = isinstance(declared, Mapping) and any(
        isinstance(value, str | Mapping | AffectsSpec) for value in declared.values()
    )
    return "by_input" if by_input else "whole"


Affects = Annotated[
    Annotated[AffectsSpec | Literal["all", "same"], Tag("whole")]
    | Annotated[Mapping[Name, InputAffects], Tag("by_input")],
    Discriminator(_affects_type),
]


class IntervalsSpec(Spec):
    """Declares that rows are validity intervals. For each value of `by` they are contiguous: `start` is inclusive,
    `end` is exclusive and equals the next start; only the last interval may be open.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    by: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = Field(min_length=1)
    start: str = Field(alias="from")
    end: str = Field(alias="to")


class ChecksSpec(Spec):
    """Checks of a result before it is published, and the maximum age of the table.

    Counts refer to the rebuilt part. `max_drop` is a fraction: the check fails if a partition loses more than this
    fraction of its rows.
    """

    min_rows: int = Field(default=0, ge=0)
    unique: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()
    not_null: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()
    max_drop: float | None = Field(default=None, gt=0, lt=1)
    max_age_minutes: float | None = Field(default=None, gt=0)
    intervals: IntervalsSpec | None = Field(default=None, description="rows have contiguous validity intervals")

    @property
    def has_result_checks(self) -> bool:
        """Whether results are checked before they are committed."""
        return bool(self.min_rows or self.unique or self.not_null or self.max_drop or self.intervals)


class GoldTableSpec(Spec):
    """A gold table, built by SQL from bronze and gold tables of the pipeline.

    It can also read gold of other pipelines, as `pipeline.table` in `reads` and `pipeline__table` in SQL. With
    `affects: same` its inputs have the same partition column, and a changed value rebuilds only its own partition. The
    key `affects` may also name the affected dates per input and, with a grain, the affected hours.
    """

    name: Name
    sql: str
    description: str = ""
    columns: Mapping[str, str] = Field(default_factory=dict, description="descriptions of columns by name")
    reads: tuple[GoldInput, ...] = Field(min_length=1)
    partition_by: str
    affects: Affects = AffectsSpec.defaults()
    checks: ChecksSpec = ChecksSpec.defaults()
    grain: GrainSpec | None = Field(default=None, description="rebuild changed hours instead of complete dates")
    refresh: Literal["auto", "incremental", "strict", "full"] = Field(
        default="auto",
        description=(
            "auto: from new rows alone if its SQL allows it, else its changed partitions. incremental: SQL that does "
            "not allow it is refused. strict: so is a build that needs more than new rows. full: all rows, always"
        ),
    )
    frozen_after: Duration | None = Field(
        default=None,
        description="events of dates that ended so long ago are counted and rebuild nothing, such as 30d",
    )
    lag: Lag | None = Field(
        default=None,
        description=(
            "how long after rows were committed a build begins at the latest; below 5m the stream builds the table, "
            "else the gold DAG; by default that of gold"
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _default_to_hours(cls, declared: Any) -> Any:
        """Sets the default of `affects` for a table with a grain: a changed hour affects the same hour."""
        if isinstance(declared, Mapping) and declared.get("grain") is not None and declared.get("affects") is None:
            return {**declared, "affects": {"hours": (0,)}}
        return declared

    def frozen_before(self, now: dt.datetime) -> dt.date | None:
        """Returns the date before which late events rebuild nothing; None if they always do."""
        return None if self.frozen_after is None else (now - self.frozen_after).date()

    @property
    def is_partitioned_by_date(self) -> bool:
        """Whether the table is partitioned by a date, so that single dates can be rebuilt."""
        return not isinstance(self.affects, str)

    def affects_for_input(self, name: str) -> InputAffects | Literal["same"]:
        """Returns what a change of an input rebuilds."""
        if isinstance(self.affects, str | AffectsSpec):
            return self.affects
        return self.affects.get(name, AffectsSpec())


class GoldSpec(Spec):
    """The gold tables of a pipeline, and how soon rows are in them."""

    lag: Annotated[Lag | None, _GOLD_TABLES] = Field(default=None, description="of tables that declare none")
    deadline_minutes: Annotated[float | None, IMMEDIATE] = Field(
        default=None, gt=0, description="time after queueing from which an alert is raised for an unfinished run"
    )
    max_age_minutes: Annotated[float | None, IMMEDIATE] = Field(
        default=None, gt=0, description="how long landed rows may wait for a table that declares no such check"
    )
    dedupe: Annotated[DedupeSpec | None, _NEXT_BUILD] = None
    tables: Annotated[tuple[GoldTableSpec, ...], _GOLD_TABLES] = ()

    def max_age_of(self, table: GoldTableSpec) -> float | None:
        """Returns how many minutes landed rows may wait to be in a table; None without a promise."""
        return self.max_age_minutes if table.checks.max_age_minutes is None else table.checks.max_age_minutes

    def lag_of(self, name: str) -> dt.timedelta | None:
        """Returns the lag of a table: its own, or the shortest of the gold tables that read it; None without any."""
        return self._lags.get(name)

    @property
    def _lags(self) -> dict[str, dt.timedelta]:
        """The lags of the tables. Readers of a table come before it, so that it inherits theirs."""
        lags: dict[str, dt.timedelta] = {}
        # A cycle is refused elsewhere.
        for table in () if find_cycle(self.tables) else reversed(build_order(self.tables)):
            declared = self.lag if table.lag is None else table.lag
            readers = (lags.get(reader.name) for reader in self.tables if table.name in reader.reads)
            if lag := min((one for one in (declared, *readers) if one is not None), default=None):
                lags[table.name] = lag
        return lags

    @property
    def stream_refreshed_tables(self) -> tuple[GoldTableSpec, ...]:
        """Gold tables that the stream rebuilds in addition to the schedule, in build order."""
        lags = self._lags
        return tuple(table for table in build_order(self.tables) if lags.get(table.name, STREAM_LAG) < STREAM_LAG)

    @property
    def schedule(self) -> str | None:
        """The cron expression of the gold DAG: often enough for the tables that the stream does not build. None if no
        table has a lag.
        """
        lags = self._lags.values()
        shortest = min((lag for lag in lags if lag >= STREAM_LAG), default=_FALLBACK_INTERVAL if lags else None)
        return None if shortest is None else cron_within(shortest)

    @property
    def cross_pipeline_inputs(self) -> tuple[tuple[str, str], ...]:
        """Gold tables of other pipelines that these tables read, as (pipeline, table), sorted."""
        reads = {
            key_path
            for table in self.tables
            for name in table.reads
            if (key_path := cross_pipeline_table(name)) is not None
        }
        return tuple(sorted(reads))


def cross_pipeline_table(read: str) -> tuple[str, str] | None:
    """Splits an input into pipeline and table. Returns None for a table of the pipeline itself."""
    pipeline, separator, table = read.partition(".")
    return (pipeline, table) if separator else None


def view_name(read: str) -> str:
    """Returns the name by which SQL reads an input."""
    return read.replace(".", "__")


#: Maximum size of a reference table's file.
MAX_REFERENCE_BYTES = 16 << 20


class ReferenceColumn(Spec):
    """A column of a reference table, named as in the file's header."""

    name: Name
    type: TypeText
    description: str = ""


class ReferenceSpec(Spec):
    """A small table from a CSV file, which is in the pipeline's folder or an object in the lake.

    Gold builds replace the table if the file changed. `effective_date` is the column with the date from which a row
    applies, for gold tables with `affects: onwards`.
    """

    name: Name
    file: str | None = Field(default=None, description="a path in the pipeline's folder")
    object: str | None = Field(default=None, description="a key in the lake")
    key: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = Field(min_length=1)
    columns: tuple[ReferenceColumn, ...] = Field(min_length=1)
    effective_date: str | None = None
    description: str = ""

    def column_types(self) -> dict[str, str]:
        """Returns the type of each column by name."""
        return {column.name: column.type for column in self.columns}


class AnnounceSpec(Spec):
    """Publishes a view's result on an `sns` channel of the environment whenever it changes."""

    channel: Name
    every_seconds: float = Field(default=5, ge=1, le=3600, description="polling interval")


class WidgetSpec(Spec):
    """Shows a view's result on a page of the console, and sends it to readers as server-sent events."""

    title: str = Field(default="", max_length=120)
    max_rows: int = Field(default=20, ge=1, le=200, description="rows that are sent, in the view's order")
    every_seconds: float = Field(
        default=5, ge=1, le=3600, description="interval at which the tables are checked for changes, for all readers"
    )


class ViewSpec(Spec):
    """A named query in DuckDB's dialect over tables and views of the pipeline."""

    name: Name
    sql: str
    reads: tuple[Name, ...] = Field(min_length=1)
    description: str = ""
    announce: AnnounceSpec | None = Field(default=None, description="the stream publishes its result when it changed")
    widget: WidgetSpec | None = Field(default=None, description="the console shows and sends its result")


class _Reader(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def reads(self) -> tuple[str, ...]: ...


def names_read(views: Mapping[str, Iterable[str]], names: Iterable[str]) -> list[str]:
    """Returns these names and, after them, those that the views among them read, also through other views.

    Args:
        views: the names that each view reads, by its name.
    """
    read = list(dict.fromkeys(names))
    for name in read:  # also over the names that are added meanwhile
        read += [other for other in dict.fromkeys(views.get(name, ())) if other not in read]
    return read


def view_order(views: Iterable[ViewSpec]) -> list[ViewSpec]:
    """Returns the views in dependency order, inputs first. There must be no cycle."""
    declared = {view.name: view for view in views}
    return [declared[name] for name in _topological_sorter(declared).static_order()]


def build_order(tables: Iterable[GoldTableSpec]) -> list[GoldTableSpec]:
    """Returns the tables in dependency order, inputs first; otherwise in declared order.

    Raises:
        ValueError: tables form a cycle, which the message names.
    """
    declared = {table.name: table for table in tables}
    cycle = find_cycle(declared.values())
    if cycle:
        raise ValueError(f"gold tables form a cycle: {' reads '.join(cycle)}")
    return [declared[name] for name in _topological_sorter(declared).static_order()]


def find_cycle(tables: Iterable[_Reader]) -> list[str]:
    """Returns the names of tables or views that form a cycle; empty if there is none.

    Each reads the next one. The first name is repeated at the end.
    """
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
