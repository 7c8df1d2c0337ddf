"""Rows of a pipeline that fail a table rule with `on_fail: warn`, counted by the stream: per day, and of the last hour.

As in the summary of quarantine, the last counted batch is named, so the stream adds each batch once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import ClassVar, Final

from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.paths import rule_warnings_summary
from deltaworks.control.records.store import RecordKind
from deltaworks.control.summaries.base import Summary, SummaryPart, read_summary, write_summary

KEEP_DAYS: Final = 30
WRITE_SECONDS: Final = 60.0
#: Length of an interval of the last hour.
_INTERVAL: Final = timedelta(minutes=5)
HOUR: Final = timedelta(hours=1)
#: Maximum number of batches kept in memory while the storage does not answer.
_MAX_PENDING_BATCHES: Final = 1_000


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


class RuleWarningsSummary(Summary):
    """The counts of all rules with `on_fail: warn`. `through_batch` of `generation` is the last counted batch."""

    kind: ClassVar[RecordKind] = RecordKind(
        noun="summary of rule warnings",
        unreadable_condition="SUMMARY_UNREADABLE",
        hint="The stream starts a new one with its next batch.",
    )

    generation: int = 1
    through_batch: int = -1
    rules: tuple[RuleWarnings, ...] = ()

    def of_rule(self, table: str, rule: str) -> RuleWarnings:
        """Returns the counts of a rule; empty ones if it has none."""
        matching = (one for one in self.rules if (one.table, one.rule) == (table, rule))
        return next(matching, RuleWarnings(table=table, rule=rule))


class RuleWarningsCounter:
    """Adds the rows of batches to the summary. Single-threaded. If a write fails, the next one includes its rows.

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
        self._objects, self._pipeline, self._generation = objects, pipeline, generation
        self._rules = {table: tuple(names) for table, names in rules.items()}
        self._interval = timedelta(seconds=interval_seconds)
        self._pending: dict[int, tuple[datetime, Mapping[str, int], Mapping[str, int]]] = {}
        self._written_at: datetime | None = None

    def add(self, batch_id: int, rows: Mapping[str, int], failed: Mapping[str, int], *, at: datetime) -> None:
        """Adds a batch without writing.

        Args:
            rows: landed rows by table.
            failed: rows by `table.rule`.
        """
        counted = {table: number for table, number in rows.items() if number and self._rules.get(table)}
        if counted and (batch_id in self._pending or len(self._pending) < _MAX_PENDING_BATCHES):
            self._pending[batch_id] = at, counted, failed

    def write(self, now: datetime | None = None, *, force: bool = False) -> None:
        """Writes the rows added since the last write, if the interval has passed or with `force`."""
        now = now or utc_now()
        is_due = self._written_at is None or now - self._written_at >= self._interval
        if not self._pending or not (force or is_due):
            return
        self._written_at = now
        key = rule_warnings_summary(self._pipeline)
        stored, etag = read_summary(RuleWarningsSummary, self._objects, key)
        if stored is None or stored.generation != self._generation:
            stored = RuleWarningsSummary(pipeline=self._pipeline, at="", generation=self._generation)
        batches = [batch for batch in sorted(self._pending) if batch > stored.through_batch]
        if batches:
            updated = stored.replace(
                at=now.isoformat(timespec="milliseconds"), through_batch=batches[-1], rules=self._added(stored, batches)
            )
            if not write_summary(self._objects, key, updated, etag=etag):
                return  # another process wrote meanwhile: the next write adds to that
        self._pending.clear()

    def _added(self, stored: RuleWarningsSummary, batches: Iterable[int]) -> tuple[RuleWarnings, ...]:
        """Returns the counts of all declared rules with these batches. Other rules are dropped."""
        counts = {(table, rule): stored.of_rule(table, rule) for table, names in self._rules.items() for rule in names}
        for batch in batches:
            at, rows, failed = self._pending[batch]
            for (table, rule), one in counts.items():
                if table in rows:
                    counts[table, rule] = one.with_rows(rows[table], failed.get(f"{table}.{rule}", 0), at=at)
        return tuple(one for one in counts.values() if one.days)


def _added(counts: tuple[RowCount, ...], at: str, rows: int, failed: int) -> tuple[RowCount, ...]:
    """Adds rows to the count of a time, which is the last one unless a resumed batch is older."""
    before = next((one for one in counts if one.at == at), RowCount(at=at, rows=0, failed=0))
    updated = before.replace(rows=before.rows + rows, failed=before.failed + failed)
    return tuple(sorted((*(one for one in counts if one.at != at), updated), key=lambda one: one.at))
