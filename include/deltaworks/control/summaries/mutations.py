"""Summary of a pipeline's last mutation batches and pending requests, written by batches and the health check."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from deltaworks.control.objects import ObjectStore
from deltaworks.control.paths import mutations_summary
from deltaworks.control.records.mutation import MutationCompletion
from deltaworks.control.records.store import RecordKind
from deltaworks.control.summaries.base import Summary, SummaryPart, update_summary

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
