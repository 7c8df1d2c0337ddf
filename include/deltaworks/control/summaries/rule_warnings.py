"""Rows of a pipeline that fail a table rule with `on_fail: warn`, counted by the stream by day and in the last hour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, Final

from deltaworks.control.clock import parse_iso
from deltaworks.control.objects import ObjectStore
from deltaworks.control.paths import rule_warnings_summary
from deltaworks.control.records.store import RecordKind
from deltaworks.control.summaries.base import WRITE_SECONDS, BatchCounter, CountedSummary, SummaryPart

KEEP_DAYS: Final = 30
#: Length of an interval of the last hour.
_INTERVAL: Final = timedelta(minutes=5)
HOUR: Final = timedelta(hours=1)


class RowCount(SummaryPart):
    """Landed rows of a table from a time on, and how many of them failed the rule."""

    at: str
    rows: int
    failed: int

    @property
    def share(self) -> float:
        """The share of failed rows."""
        return self.failed / self.rows if self.rows else 0.0


class RuleWarnings(SummaryPart):
    """The counts of one rule: `days` of up to a month and `intervals` of the last hour, oldest first."""

    table: str
    rule: str
    days: tuple[RowCount, ...] = ()
    intervals: tuple[RowCount, ...] = ()

    def with_rows(self, rows: int, failed: int, *, at: datetime) -> RuleWarnings:
        """Adds the rows of a batch, and drops what is too old."""
        since = at - (at - datetime.min.replace(tzinfo=at.tzinfo)) % _INTERVAL
        oldest_day = (at - timedelta(days=KEEP_DAYS)).date().isoformat()
        days = tuple(one for one in self.days if one.at > oldest_day)
        return self.replace(
            days=_added(days, at.date().isoformat(), rows, failed),
            intervals=_added(self._recent(at), since.isoformat(), rows, failed),
        )

    def last_hour(self, now: datetime) -> RowCount:
        """Returns the rows of the last hour, in complete intervals."""
        recent = self._recent(now)
        return RowCount(
            at=recent[0].at if recent else now.isoformat(),
            rows=sum(one.rows for one in recent),
            failed=sum(one.failed for one in recent),
        )

    def _recent(self, now: datetime) -> tuple[RowCount, ...]:
        return tuple(one for one in self.intervals if (at := parse_iso(one.at)) is not None and now - at <= HOUR)


class RuleWarningsSummary(CountedSummary):
    """The counts of all rules with `on_fail: warn`."""

    kind: ClassVar[RecordKind] = RecordKind(
        noun="summary of rule warnings",
        unreadable_condition="SUMMARY_UNREADABLE",
        hint="The stream starts a new one with its next batch.",
    )

    rules: tuple[RuleWarnings, ...] = ()

    def of_rule(self, table: str, rule: str) -> RuleWarnings:
        """Returns the counts of a rule; empty ones if it has none."""
        matching = (one for one in self.rules if (one.table, one.rule) == (table, rule))
        return next(matching, RuleWarnings(table=table, rule=rule))


@dataclass(frozen=True, slots=True)
class LandedBatch:
    """When a batch landed, its rows by table, and its failed rows by `table.rule`."""

    at: datetime
    rows: Mapping[str, int]
    failed: Mapping[str, int]


class RuleWarningsCounter(BatchCounter[RuleWarningsSummary, LandedBatch]):
    """Adds the rows of batches to the summary.

    Args:
        rules: names of the rules with `on_fail: warn`, by table. Without any nothing is written.
    """

    def __init__(
        self,
        objects: ObjectStore,
        pipeline: str,
        rules: Mapping[str, Iterable[str]],
        *,
        generation: int,
        interval_seconds: float = WRITE_SECONDS,
    ) -> None:
        empty = RuleWarningsSummary(pipeline=pipeline, at="", generation=generation)
        super().__init__(objects, rule_warnings_summary(pipeline), empty, interval_seconds=interval_seconds)
        self._rules = {table: tuple(names) for table, names in rules.items()}

    def add(self, batch_id: int, rows: Mapping[str, int], failed: Mapping[str, int], *, at: datetime) -> None:
        """Adds a batch without writing.

        Args:
            rows: landed rows by table.
            failed: rows by `table.rule`.
        """
        counted = {table: number for table, number in rows.items() if number and self._rules.get(table)}
        if counted:
            self._remember(batch_id, LandedBatch(at, counted, failed))

    def with_batches(self, stored: RuleWarningsSummary, batches: Mapping[int, LandedBatch]) -> RuleWarningsSummary:
        """Returns the counts of all declared rules with further batches. Other rules are dropped."""
        counts = {(table, rule): stored.of_rule(table, rule) for table, names in self._rules.items() for rule in names}
        for _, batch in sorted(batches.items()):
            for (table, rule), one in counts.items():
                if table in batch.rows:
                    failed = batch.failed.get(f"{table}.{rule}", 0)
                    counts[table, rule] = one.with_rows(batch.rows[table], failed, at=batch.at)
        return stored.replace(rules=tuple(one for one in counts.values() if one.days))


def _added(counts: tuple[RowCount, ...], at: str, rows: int, failed: int) -> tuple[RowCount, ...]:
    """Adds rows to the count of a time, which is the last one unless a resumed batch is older."""
    before = next((one for one in counts if one.at == at), RowCount(at=at, rows=0, failed=0))
    updated = before.replace(rows=before.rows + rows, failed=before.failed + failed)
    return tuple(sorted((*(one for one in counts if one.at != at), updated), key=lambda one: one.at))
