"""The last nights of a pipeline's maintenance: what each task did, what it left out and why, and how it ended."""

from __future__ import annotations

from typing import ClassVar

from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import RecordKind
from deltaworks.control.summaries.base import Summary, SummaryPart, update_summary
from deltaworks.control.summary_paths import nights_summary

MAX_NIGHTS = 60
#: Results of one task that are kept one by one, those with most bytes; the others are counted.
MAX_RESULTS = 100


class NightResult(SummaryPart):
    """What a task did to one thing, a table mostly. Of what was only counted `dry_run` is true."""

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

    @property
    def is_idle(self) -> bool:
        """Whether nothing was done to it."""
        return not (self.files or self.rows or self.bytes or self.error)


class NightTask(SummaryPart):
    """One task of a night. `files`, `rows` and `bytes` are sums over all its results, `omitted` those not listed."""

    task: str
    state: str
    files: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    results: tuple[NightResult, ...] = ()
    omitted: int = 0


class Night(SummaryPart):
    """One run of the maintenance DAG; `date` is the ISO date in UTC on which it began."""

    run: str
    date: str
    started_at: str
    ended_at: str
    is_manual: bool = False
    tasks: tuple[NightTask, ...] = ()

    @property
    def failed(self) -> tuple[str, ...]:
        """The tasks that failed, by name."""
        return tuple(task.task for task in self.tasks if task.state == "failed")


class NightsSummary(Summary):
    """The last nights of a pipeline, newest first."""

    kind: ClassVar[RecordKind] = RecordKind(
        noun="summary of nights", unreadable_condition="SUMMARY_UNREADABLE", hint="The next night writes it anew."
    )

    nights: tuple[Night, ...] = ()

    def with_night(self, night: Night) -> NightsSummary:
        """With one more night, which takes the place of the same run's; at most NIGHTS."""
        others = [other for other in self.nights if other.run != night.run]
        newest = sorted([night, *others], key=lambda one: one.started_at, reverse=True)
        return self.replace(at=max(self.at, night.ended_at), nights=tuple(newest[:MAX_NIGHTS]))


def record_night(objects: ObjectStore, pipeline: str, night: Night) -> bool:
    """Keep a night; False where others wrote at the same time each of a few times. Idempotent by its run."""
    none = NightsSummary(pipeline=pipeline, at=night.ended_at)
    return update_summary(
        objects, nights_summary(pipeline), NightsSummary, lambda before: (before or none).with_night(night)
    )
