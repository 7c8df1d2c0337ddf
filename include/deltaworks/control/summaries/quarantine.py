"""Counts of open rows in a pipeline's quarantine, updated by the stream and recounted from the table.

The summary names the last counted batch, so the stream adds each batch once. A recount, by a replay, an expiry or a
reprocess, replaces the summary and names the last counted batch, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar

from deltaworks.control.clock import utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.paths import quarantine_summary
from deltaworks.control.records.store import RecordKind
from deltaworks.control.summaries.base import Summary, SummaryPart, read_summary, truncate, write_summary

#: Maximum number of listed kinds; rows of rarer kinds are counted together.
MAX_KINDS = 500
WRITE_SECONDS = 60.0
#: Maximum number of batches kept in memory while the storage does not answer.
_MAX_PENDING_BATCHES = 1_000
_NAME_LENGTH = 200


class OpenRowCount(SummaryPart):
    """Open rows of one date, reason, event, field and spec fingerprint. A row counts once per reason and field."""

    date: str
    reason: str
    event: str = ""
    field: str = ""
    spec: str = ""
    rows: int

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """The key of the count."""
        return self.date, self.reason, self.event, self.field, self.spec


class QuarantineSummary(Summary):
    """Open rows by kind, most frequent first. `through_batch` of `generation` is the last counted batch."""

    kind: ClassVar[RecordKind] = RecordKind(
        noun="summary of quarantine",
        unreadable_condition="SUMMARY_UNREADABLE",
        hint="The next maintenance run recounts.",
    )

    generation: int = 1
    through_batch: int = -1
    open_rows: tuple[OpenRowCount, ...] = ()
    other_rows: int = 0

    @property
    def rows(self) -> int:
        """Number of open rows, at most; a row counts once per reason and field."""
        return sum(one.rows for one in self.open_rows) + self.other_rows

    def with_rows(self, rows: Iterable[OpenRowCount], *, through_batch: int, at: str) -> QuarantineSummary:
        """Adds rows, truncated."""
        rows_by_key: Counter[tuple[str, str, str, str, str]] = Counter()
        for one in (*self.open_rows, *rows):
            rows_by_key[one.key] += one.rows
        listed, omitted_rows = _truncate_kinds(rows_by_key)
        return self.replace(
            at=at,
            through_batch=max(self.through_batch, through_batch),
            open_rows=listed,
            other_rows=self.other_rows + omitted_rows,
        )


def recount(
    pipeline: str, counts: Iterable[Mapping[str, Any]], *, generation: int, through_batch: int, at: datetime
) -> QuarantineSummary:
    """Builds the summary of a full table.

    Args:
        counts: `quarantine_date`, `code`, `path`, `event_name`, `spec_fingerprint` and `rows` of each kind.
    """
    rows = (
        OpenRowCount(
            date=str(row["quarantine_date"]),
            reason=str(row["code"]),
            event=truncate(row["event_name"] or "", _NAME_LENGTH),
            field=truncate(row["path"] or "", _NAME_LENGTH),
            spec=row["spec_fingerprint"] or "",
            rows=int(row["rows"]),
        )
        for row in counts
    )
    empty = QuarantineSummary(pipeline=pipeline, at="", generation=generation)
    return empty.with_rows(rows, through_batch=through_batch, at=at.isoformat(timespec="milliseconds"))


def _truncate_kinds(rows_by_key: Counter[tuple[str, str, str, str, str]]) -> tuple[tuple[OpenRowCount, ...], int]:
    ranked = sorted(rows_by_key.items(), key=lambda item: (-item[1], item[0]))
    listed = tuple(
        OpenRowCount(date=date, reason=reason, event=event, field=field, spec=spec, rows=rows)
        for (date, reason, event, field, spec), rows in ranked[:MAX_KINDS]
    )
    return listed, sum(rows for _, rows in ranked[MAX_KINDS:])


class QuarantineCounter:
    """Adds the quarantined rows of batches to the summary. Single-threaded.

    If a write fails, the next one includes its rows.
    """

    def __init__(
        self,
        objects: ObjectStore,
        pipeline: str,
        *,
        generation: int,
        spec: str,
        interval_seconds: float = WRITE_SECONDS,
    ) -> None:
        """Creates the counter of one stream.

        Args:
            spec: the fingerprint of the batches' spec.
            interval_seconds: minimum time between writes.
        """
        self._objects = objects
        self._pipeline = pipeline
        self._generation = generation
        self._spec = spec
        self._interval = timedelta(seconds=interval_seconds)
        self._pending: dict[int, tuple[OpenRowCount, ...]] = {}
        self._written_at: datetime | None = None

    def add(self, batch_id: int, kinds: Iterable[tuple[str, str, str, int]], *, at: datetime) -> None:
        """Adds the quarantined rows of a batch (reason, event, field, rows) without writing."""
        date = at.date().isoformat()
        rows = tuple(
            OpenRowCount(
                date=date,
                reason=reason,
                event=truncate(event, _NAME_LENGTH),
                field=truncate(field, _NAME_LENGTH),
                spec=self._spec,
                rows=number,
            )
            for reason, event, field, number in kinds
        )
        if rows and (batch_id in self._pending or len(self._pending) < _MAX_PENDING_BATCHES):
            self._pending[batch_id] = rows

    def write(self, now: datetime | None = None, *, force: bool = False) -> None:
        """Writes the rows added since the last write, if the interval has passed.

        Args:
            force: write regardless of the interval.
        """
        now = now or utc_now()
        if not self._pending or not (force or self._is_due(now)):
            return
        self._written_at = now
        key = quarantine_summary(self._pipeline)
        stored, etag = read_summary(QuarantineSummary, self._objects, key)
        if stored is None or stored.generation != self._generation:
            stored = QuarantineSummary(pipeline=self._pipeline, at="", generation=self._generation)
        new_batches = {batch: rows for batch, rows in self._pending.items() if batch > stored.through_batch}
        if new_batches:
            rows = (one for batch_rows in new_batches.values() for one in batch_rows)
            at = now.isoformat(timespec="milliseconds")
            updated = stored.with_rows(rows, through_batch=max(new_batches), at=at)
            if not write_summary(self._objects, key, updated, etag=etag):
                return  # another process recounted meanwhile: the next write adds to that
        self._pending.clear()

    def _is_due(self, now: datetime) -> bool:
        return self._written_at is None or now - self._written_at >= self._interval
