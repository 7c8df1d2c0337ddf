"""Open rows of a pipeline's quarantine, counted: by the stream as it goes, anew by whoever reads the whole table.

The stream adds what a batch has put there, once: the summary says through which batch it counts. A recount, by a
replay, an expiry or a reprocess, takes its place and says the same. So neither counts what the other has counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar

from deltaworks.control.clock import utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import RecordKind
from deltaworks.control.summaries.base import Summary, SummaryPart, read_summary, truncate, write_summary
from deltaworks.control.summary_paths import quarantine_summary

#: Kinds that are counted apart; rows of the rarest others are counted together.
MAX_KINDS = 500
WRITE_SECONDS = 60.0
#: Batches that wait to be added, where the storage does not answer for long.
_MAX_PENDING_BATCHES = 1_000
_EVENT_LENGTH = 200


class OpenRowCount(SummaryPart):
    """Open rows of one date, reason, event and fingerprint of the spec. A row counts once for each of its reasons."""

    date: str
    reason: str
    event: str = ""
    spec: str = ""
    rows: int

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What tells it from others."""
        return self.date, self.reason, self.event, self.spec


class QuarantineSummary(Summary):
    """Open rows by kind, most first. `through_batch` of `generation` is the last batch that they count."""

    kind: ClassVar[RecordKind] = RecordKind(
        noun="summary of quarantine",
        unreadable_condition="SUMMARY_UNREADABLE",
        hint="The next night counts anew.",
    )

    generation: int = 1
    through_batch: int = -1
    open_rows: tuple[OpenRowCount, ...] = ()
    other_rows: int = 0

    def with_rows(self, rows: Iterable[OpenRowCount], *, through_batch: int, at: str) -> QuarantineSummary:
        """With more rows, bounded."""
        counted: Counter[tuple[str, str, str, str]] = Counter()
        for one in (*self.open_rows, *rows):
            counted[one.key] += one.rows
        kept, other = _truncate_kinds(counted)
        return self.replace(
            at=at,
            through_batch=max(self.through_batch, through_batch),
            open_rows=kept,
            other_rows=self.other_rows + other,
        )


def recount(
    pipeline: str, counts: Iterable[Mapping[str, Any]], *, generation: int, through_batch: int, at: datetime
) -> QuarantineSummary:
    """The summary of a whole table.

    Args:
        counts: `quarantine_date`, `code`, `event_name`, `spec_fingerprint` and `rows` of each kind.
    """
    rows = (
        OpenRowCount(
            date=str(row["quarantine_date"]),
            reason=str(row["code"]),
            event=truncate(row["event_name"] or "", _EVENT_LENGTH),
            spec=row["spec_fingerprint"] or "",
            rows=int(row["rows"]),
        )
        for row in counts
    )
    begun = QuarantineSummary(pipeline=pipeline, at="", generation=generation)
    return begun.with_rows(rows, through_batch=through_batch, at=at.isoformat(timespec="milliseconds"))


def _truncate_kinds(counted: Counter[tuple[str, str, str, str]]) -> tuple[tuple[OpenRowCount, ...], int]:
    ranked = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    kept = tuple(
        OpenRowCount(date=date, reason=reason, event=event, spec=spec, rows=rows)
        for (date, reason, event, spec), rows in ranked[:MAX_KINDS]
    )
    return kept, sum(rows for _, rows in ranked[MAX_KINDS:])


class QuarantineCounter:
    """Adds to the summary what batches of one generation have quarantined. Used by one thread; a write that fails is
    made up for by the next."""

    def __init__(
        self,
        objects: ObjectStore,
        pipeline: str,
        *,
        generation: int,
        spec: str,
        interval_seconds: float = WRITE_SECONDS,
    ) -> None:
        """
        Args:
            spec: the fingerprint of the spec that the batches are of.
            seconds: as often it is written at most.
        """
        self._objects = objects
        self._pipeline = pipeline
        self._generation = generation
        self._spec = spec
        self._interval = timedelta(seconds=interval_seconds)
        self._pending: dict[int, tuple[OpenRowCount, ...]] = {}
        self._written_at: datetime | None = None

    def add(self, batch_id: int, kinds: Iterable[tuple[str, str, int]], *, at: datetime) -> None:
        """Take what a batch has quarantined: reason, event and rows. Nothing is written yet."""
        date = at.date().isoformat()
        rows = tuple(
            OpenRowCount(date=date, reason=reason, event=truncate(event, _EVENT_LENGTH), spec=self._spec, rows=number)
            for reason, event, number in kinds
        )
        if rows and (batch_id in self._pending or len(self._pending) < _MAX_PENDING_BATCHES):
            self._pending[batch_id] = rows

    def write(self, now: datetime | None = None, *, force: bool = False) -> None:
        """Write what was added since the last time, where that is long enough ago. Nothing to add, nothing is written.

        Args:
            everything: write it whenever the last time was.
        """
        now = now or utc_now()
        if not self._pending or not (force or self._is_due(now)):
            return
        self._written_at = now
        key = quarantine_summary(self._pipeline)
        before, etag = read_summary(QuarantineSummary, self._objects, key)
        if before is None or before.generation != self._generation:
            before = QuarantineSummary(pipeline=self._pipeline, at="", generation=self._generation)
        fresh = {batch: rows for batch, rows in self._pending.items() if batch > before.through_batch}
        if fresh:
            rows = (one for of_batch in fresh.values() for one in of_batch)
            at = now.isoformat(timespec="milliseconds")
            after = before.with_rows(rows, through_batch=max(fresh), at=at)
            if not write_summary(self._objects, key, after, etag=etag):
                return  # somebody has counted anew meanwhile: the next time adds to that
        self._pending.clear()

    def _is_due(self, now: datetime) -> bool:
        return self._written_at is None or now - self._written_at >= self._interval
