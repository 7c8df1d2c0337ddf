"""Summaries of a pipeline's jobs: mutation batches with the pending requests, nightly runs with the result of each
task, and gold tables with their comparisons and the late rows that their frozen dates lack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final

from pydantic import Field

from deltaworks.control.clock import instant_or_none
from deltaworks.control.objects import ObjectStore
from deltaworks.control.paths import gold_verification, mutations_summary, nights_summary
from deltaworks.control.records.mutation import MutationCompletion
from deltaworks.control.records.store import RecordKind
from deltaworks.control.summaries.base import Summary, SummaryPart, read_summary, update_summary

MAX_BATCHES = 60


class BatchSummary(SummaryPart):
    """One completed batch, applied by `engine` (`process` or `spark`).

    `seconds` are by phase; the stream could not write a table for `pause_seconds`.
    """

    number: int
    outcome: str
    at: str
    engine: str = ""
    requests: dict[str, int]
    invalid_requests: int = 0
    rows: int = 0
    tables: int = 0
    conflicts: int = 0
    pause_seconds: float = 0.0
    seconds: dict[str, float]


class MutationsSummary(Summary):
    """The last batches, newest first, and the requests pending at `checked_at`, with the time of the oldest."""

    kind: ClassVar[RecordKind] = RecordKind(
        noun="summary of mutations", unreadable_condition="SUMMARY_UNREADABLE", hint="The next batch rewrites it."
    )

    batches: tuple[BatchSummary, ...] = ()
    waiting_requests: int | None = None
    oldest_at: str = ""
    checked_at: str = ""

    def with_batches(self, ends: Iterable[MutationCompletion]) -> MutationsSummary:
        """Adds batches, at most MAX_BATCHES in total; a batch of the same number is replaced."""
        by_number = {batch.number: batch for batch in self.batches} | {end.number: _to_summary(end) for end in ends}
        newest = [by_number[number] for number in sorted(by_number, reverse=True)][:MAX_BATCHES]
        return self.replace(batches=tuple(newest), at=max((batch.at for batch in newest), default=self.at))


def _to_summary(end: MutationCompletion) -> BatchSummary:
    return BatchSummary(
        number=end.number,
        outcome=end.outcome,
        at=end.at,
        engine=end.engine,
        requests=end.requests,
        invalid_requests=end.invalid_requests,
        rows=end.rows,
        tables=len(end.tables),
        conflicts=sum(table.attempts - 1 for table in end.tables),
        pause_seconds=end.pause_seconds,
        seconds=end.seconds,
    )


def record_batches(objects: ObjectStore, pipeline: str, ends: Iterable[MutationCompletion]) -> bool:
    """Adds completed batches; returns False if other writers won each attempt. Idempotent by batch number."""
    every = tuple(ends)
    return not every or _update(objects, pipeline, lambda summary: summary.with_batches(every))


def record_waiting_requests(
    objects: ObjectStore, pipeline: str, *, requests: int, oldest_at: str, checked_at: str
) -> bool:
    """Updates the number of pending requests if it changed; returns False if other writers won each attempt."""

    def change(summary: MutationsSummary) -> MutationsSummary:
        if (summary.waiting_requests, summary.oldest_at) == (requests, oldest_at):
            return summary
        return summary.replace(waiting_requests=requests, oldest_at=oldest_at, checked_at=checked_at)

    return _update(objects, pipeline, change)


def _update(objects: ObjectStore, pipeline: str, change: Callable[[MutationsSummary], MutationsSummary]) -> bool:
    empty = MutationsSummary(pipeline=pipeline, at="")
    return update_summary(
        objects, mutations_summary(pipeline), MutationsSummary, lambda before: change(before or empty)
    )


#: A scheduled run compares a table again after this time: weekly, though a run may begin some hours early.
VERIFICATION_INTERVAL: Final = timedelta(days=6, hours=12)


class GoldVerification(Summary):
    """The last comparison of a gold table, at `at`, and the state of its partitions.

    - `partitions`: those compared then; `differing_rows`: how many of their rows differed.
    - `deferred`: partitions that it left to a later run; `reason`: why they, or all, could not be compared.
    - `verified_at`: when each partition was last compared.
    - `differing`: the differing rows of each partition whose last comparison found any.
    """

    kind: ClassVar[RecordKind] = RecordKind(
        noun="record of a comparison of gold",
        unreadable_condition="SUMMARY_UNREADABLE",
        hint="The next comparison replaces it.",
    )

    table: str
    partitions: tuple[str, ...] = ()
    differing_rows: int = 0
    deferred: int = 0
    reason: str = ""
    verified_at: dict[str, str] = Field(default_factory=dict)
    differing: dict[str, int] = Field(default_factory=dict)

    @property
    def newest_at(self) -> datetime | None:
        """When a partition was last compared; None if none ever was."""
        return instant_or_none(max(self.verified_at.values(), default=None))

    def describe(self) -> str:
        """Returns the outcome of the last comparison in words."""
        if self.differing:
            return f"{sum(self.differing.values()):,} rows differ in {', '.join(sorted(self.differing))}"
        if not self.partitions:
            return f"not compared: {self.reason or 'no partition has ended'}"
        return f"{len(self.partitions):,} partitions equal their SQL" + (f"; {self.reason}" if self.reason else "")

    def is_due(self, now: datetime) -> bool:
        """Whether a scheduled run should compare the table again."""
        at = instant_or_none(self.at)
        return at is None or now - at >= VERIFICATION_INTERVAL


def read_gold_verification(objects: ObjectStore, pipeline: str, table: str) -> GoldVerification | None:
    """Reads the record of a gold table; None if it is missing or unreadable."""
    return read_summary(GoldVerification, objects, gold_verification(pipeline, table))[0]


def late_rows_of(record: Mapping[str, Any]) -> dict[str, int]:
    """Returns the late rows of frozen dates that a table's record names, by date; empty if it is damaged."""
    rows = record.get("late_rows")
    if not isinstance(rows, Mapping):
        return {}
    return {str(date): count for date, count in rows.items() if isinstance(count, int)}


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
