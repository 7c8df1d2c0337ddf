"""What answers a pipeline gives: gold tables built by SQL, which rows count once, and when they are rebuilt."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from deltaworks.specs.base import Name, Spec


class DedupeSpec(Spec):
    """Producer duplicates: one row per key is kept, the first to arrive."""

    by: str = "event_id"
    across_days: int = Field(default=1, ge=0, description="copies may lie this many dates apart")


class AffectsSpec(Spec):
    """Which dates of a gold table change when a date of its input changes."""

    days: tuple[int, ...] = (0,)


class GoldTableSpec(Spec):
    """A table of answers, built by SQL from what it reads.

    With `affects: same` its inputs are partitioned by its own partition column, and rows of a value change the part of
    that value alone.
    """

    name: Name
    sql: str
    description: str = ""
    reads: tuple[Name, ...] = Field(min_length=1)
    partition_by: str
    affects: AffectsSpec | Literal["all", "same"] = AffectsSpec()


class GoldSpec(Spec):
    """The pipeline's answers and when they are rebuilt."""

    schedule: str | None = None
    dedupe: DedupeSpec | None = None
    tables: tuple[GoldTableSpec, ...] = ()
