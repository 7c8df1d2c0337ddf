"""Summary of a pipeline's nightly maintenance runs: results, skipped work and outcome of each task."""

from __future__ import annotations

from typing import ClassVar

from deltaworks.control.objects import ObjectStore
from deltaworks.control.paths import nights_summary
from deltaworks.control.records.store import RecordKind
from deltaworks.control.summaries.base import Summary, SummaryPart, update_summary

MAX_NIGHTS = 60
#: Results listed per task, the largest by bytes; the others are only counted.
MAX_RESULTS = 100


class NightResult(SummaryPart):
    """Result of a task for one subject, usually a table. `dry_run`: it was only counted. `engine`: what did it."""

    subject: str
    files: int = 0
    files_after: int | None = None
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    deferred: int = 0
    dry_run: bool = False
    error: str = ""
    reason: str = ""
    engine: str = ""

    @property
    def is_idle(self) -> bool:
        """Whether the task changed nothing for this subject."""
        return not (self.files or self.rows or self.bytes or self.error)


class NightTask(SummaryPart):
    """One task of a maintenance run. `files`, `rows` and `bytes` are totals; `omitted` results are not listed.

    `engine`: which machine did the work and why; `error`: of a failed task.
    """

    task: str
    state: str
    files: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    engine: str = ""
    error: str = ""
    results: tuple[NightResult, ...] = ()
    omitted: int = 0


class Night(SummaryPart):
    """One run of the maintenance DAG; `date` is the ISO date (UTC) of its start."""

    run: str
    date: str
    started_at: str
    ended_at: str
    is_manual: bool = False
    tasks: tuple[NightTask, ...] = ()

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of failed tasks."""
        return tuple(task.task for task in self.tasks if task.state == "failed")


class NightsSummary(Summary):
    """The last maintenance runs of a pipeline, newest first."""

    kind: ClassVar[RecordKind] = RecordKind(
        noun="summary of nights",
        unreadable_condition="SUMMARY_UNREADABLE",
        hint=("The next maintenance run rewrites it."),
    )

    nights: tuple[Night, ...] = ()

    def with_night(self, night: Night) -> NightsSummary:
        """Adds or replaces a run; keeps at most MAX_NIGHTS."""
        other_nights = [other for other in self.nights if other.run != night.run]
        newest = sorted([night, *other_nights], key=lambda one: one.started_at, reverse=True)
        return self.replace(at=max(self.at, night.ended_at), nights=tuple(newest[:MAX_NIGHTS]))


def record_night(objects: ObjectStore, pipeline: str, night: Night) -> bool:
    """Records a run; returns False if other writers won each attempt. Idempotent by run id."""
    empty = NightsSummary(pipeline=pipeline, at=night.ended_at)
    return update_summary(
        objects, nights_summary(pipeline), NightsSummary, lambda before: (before or empty).with_night(night)
    )
