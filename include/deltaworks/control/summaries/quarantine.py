"""Counts of open rows in a pipeline's quarantine, updated by the stream and recounted from the table.

A recount, by a replay, an expiry or a reprocess, replaces the summary and names the last counted batch, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import chain
from typing import Any, ClassVar

from deltaworks.control.objects import ObjectStore
from deltaworks.control.paths import quarantine_summary
from deltaworks.control.records.store import RecordKind
from deltaworks.control.summaries.base import WRITE_SECONDS, BatchCounter, CountedSummary, SummaryPart, truncate

#: Maximum number of listed kinds; rows of rarer kinds are counted together.
MAX_KINDS = 500
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


class QuarantineSummary(CountedSummary):
    """Open rows by kind, most frequent first."""

    kind: ClassVar[RecordKind] = RecordKind(
        noun="summary of quarantine",
        unreadable_condition="SUMMARY_UNREADABLE",
        hint="The next maintenance run recounts.",
    )

    open_rows: tuple[OpenRowCount, ...] = ()
    other_rows: int = 0

    @property
    def rows(self) -> int:
        """Number of open rows, at most; a row counts once per reason and field."""
        return sum(one.rows for one in self.open_rows) + self.other_rows

    def with_rows(self, rows: Iterable[OpenRowCount]) -> QuarantineSummary:
        """Adds rows, truncated."""
        rows_by_key: Counter[tuple[str, str, str, str, str]] = Counter()
        for one in (*self.open_rows, *rows):
            rows_by_key[one.key] += one.rows
        listed, omitted_rows = _truncate_kinds(rows_by_key)
        return self.replace(open_rows=listed, other_rows=self.other_rows + omitted_rows)


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
    empty = QuarantineSummary(
        pipeline=pipeline,
        at=at.isoformat(timespec="milliseconds"),
        generation=generation,
        through_batch=max(-1, through_batch),
    )
    return empty.with_rows(rows)


def _truncate_kinds(rows_by_key: Counter[tuple[str, str, str, str, str]]) -> tuple[tuple[OpenRowCount, ...], int]:
    ranked = sorted(rows_by_key.items(), key=lambda item: (-item[1], item[0]))
    listed = tuple(
        OpenRowCount(date=date, reason=reason, event=event, field=field, spec=spec, rows=rows)
        for (date, reason, event, field, spec), rows in ranked[:MAX_KINDS]
    )
    return listed, sum(rows for _, rows in ranked[MAX_KINDS:])


class QuarantineCounter(BatchCounter[QuarantineSummary, tuple[OpenRowCount, ...]]):
    """Adds the quarantined rows of batches to the summary.

    Args:
        spec: the fingerprint of the batches' spec.
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
        empty = QuarantineSummary(pipeline=pipeline, at="", generation=generation)
        super().__init__(objects, quarantine_summary(pipeline), empty, interval_seconds=interval_seconds)
        self._spec = spec

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
        if rows:
            self._remember(batch_id, rows)

    def with_batches(
        self, stored: QuarantineSummary, batches: Mapping[int, tuple[OpenRowCount, ...]]
    ) -> QuarantineSummary:
        """Returns the summary with the rows of further batches."""
        return stored.with_rows(chain.from_iterable(batches.values()))
