"""What answers a pipeline gives: gold tables built by SQL, which rows count once, and when they are rebuilt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from deltaworks.specs.base import Name, Spec, as_tuple
from deltaworks.specs.effects import AT_ONCE, Edit, Effect
from deltaworks.specs.schedules import Schedule

_NEXT_BUILD = Edit(Effect.SAFE, "Nothing: the next gold build sees it and rebuilds what follows from it.")


class DedupeSpec(Spec):
    """Producer duplicates: one row per key is kept, the first to arrive."""

    by: str = "event_id"
    across_days: int = Field(default=1, ge=0, description="copies may lie this many dates apart")


class AffectsSpec(Spec):
    """Which dates of a gold table change when a date of its input changes."""

    days: tuple[int, ...] = (0,)


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

    @property
    def before_commit(self) -> bool:
        """Whether there is anything to look at in an answer."""
        return bool(self.min_rows or self.unique or self.not_null or self.max_drop)


class GoldTableSpec(Spec):
    """A table of answers, built by SQL from what it reads: bronze tables and other gold tables of the pipeline.

    With `affects: same` its inputs are partitioned by its own partition column, and rows of a value change the part of
    that value alone.
    """

    name: Name
    sql: str
    description: str = ""
    reads: tuple[Name, ...] = Field(min_length=1)
    partition_by: str
    affects: AffectsSpec | Literal["all", "same"] = AffectsSpec.defaults()
    checks: ChecksSpec = ChecksSpec.defaults()


class GoldSpec(Spec):
    """The pipeline's answers and when they are rebuilt."""

    schedule: Annotated[Schedule | None, AT_ONCE] = None
    deadline_minutes: Annotated[float | None, AT_ONCE] = Field(
        default=None, gt=0, description="an alert is raised where a run has not ended this long after it was queued"
    )
    dedupe: Annotated[DedupeSpec | None, _NEXT_BUILD] = None
    tables: Annotated[tuple[GoldTableSpec, ...], _NEXT_BUILD] = ()


def build_order(tables: Iterable[GoldTableSpec]) -> list[GoldTableSpec]:
    """The tables, each after those it reads, else as they are declared.

    Raises:
        ValueError: tables read each other in a circle, which is named.
    """
    declared = {table.name: table for table in tables}
    circle = circle_in(declared.values())
    if circle:
        raise ValueError(f"gold tables read each other in a circle: {' reads '.join(circle)}")
    return [declared[name] for name in _sorter(declared).static_order()]


def circle_in(tables: Iterable[GoldTableSpec]) -> list[str]:
    """The names of tables that read each other in a circle, each reading the next, the first one last again; none where
    there is no circle."""
    sorter = _sorter({table.name: table for table in tables})
    try:
        sorter.prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def _sorter(declared: Mapping[str, GoldTableSpec]) -> TopologicalSorter[str]:
    return TopologicalSorter(
        {name: [read for read in table.reads if read in declared] for name, table in declared.items()}
    )
