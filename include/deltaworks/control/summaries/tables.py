"""Summary of a pipeline's tables from the last health snapshot, with their history by night."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from deltaworks.control.records.store import RecordKind
from deltaworks.control.summaries.base import Summary, SummaryPart

MAX_TABLES = 2_000
MAX_NIGHTS = 30


class ScorePenalty(SummaryPart):
    """The part of a table's health score lost to one problem."""

    name: str
    weight: int
    cost: float
    reason: str


class MaintenancePlan(SummaryPart):
    """The plan of the next maintenance run for a table. `deferred` partitions do not fit into its time.

    `order` says whether Z-order acts, from which size, or why it would skip nothing; empty without `zorder_by`.
    """

    reason: str
    order: str = ""
    partitions: int = 0
    files_saved: int = 0
    bytes_rewritten: int = 0
    seconds: float = 0.0
    deferred: int = 0


class HoldSummary(SummaryPart):
    """A reader that prevents files from being deleted; `since` is empty if the log no longer contains its version."""

    by: str
    since: str = ""


class HealthPoint(SummaryPart):
    """Score and size of a table in one nightly snapshot; `date` is the ISO date in UTC."""

    date: str
    score: int | None = None
    bytes: int | None = None


class TableSummary(SummaryPart):
    """One table. With an `error` all other fields are empty."""

    name: str
    kind: str
    error: str = ""
    version: int | None = None
    score: int | None = None
    costs: tuple[ScorePenalty, ...] = ()
    files: int | None = None
    bytes: int | None = None
    rows: int | None = None
    small_files: int | None = None
    partitions: int | None = None
    skew: float | None = None
    size_histogram: tuple[int, ...] = ()
    deleted_rows: int | None = None
    unordered_share: float | None = None
    log_commits: int | None = None
    commits_since_checkpoint: int | None = None
    unreferenced_files: int | None = None
    unreferenced_bytes: int | None = None
    last_write_at: str = ""
    last_optimize_at: str = ""
    last_vacuum_at: str = ""
    next_plan: MaintenancePlan | None = None
    holds: tuple[HoldSummary, ...] = ()
    nights: tuple[HealthPoint, ...] = ()

    @property
    def small_share(self) -> float | None:
        """The share of files that could be compacted."""
        if self.small_files is None or self.files is None:
            return None
        return self.small_files / self.files if self.files else 0.0


class TablesSummary(Summary):
    """The tables of a pipeline, internal ones included; `omitted` counts tables beyond the maximum.

    The bins of `size_histogram` have the upper bounds `size_bounds` in bytes; the last bin is unbounded.
    """

    kind: ClassVar[RecordKind] = RecordKind(
        noun="summary of tables",
        unreadable_condition="SUMMARY_UNREADABLE",
        hint="The next health snapshot rewrites it.",
    )

    tables: tuple[TableSummary, ...] = ()
    size_bounds: tuple[int, ...] = ()
    omitted: int = 0

    def nights(self) -> dict[str, tuple[HealthPoint, ...]]:
        """Returns the history of each table, by name."""
        return {table.name: table.nights for table in self.tables}


def add_night(
    tables: Iterable[TableSummary], history: Mapping[str, Iterable[HealthPoint]], *, date: str
) -> tuple[TableSummary, ...]:
    """Adds a night's snapshot to the history of each table, at most MAX_NIGHTS; a second one of a date replaces the
    first.
    """
    return tuple(_add_night(table, history.get(table.name, ()), date) for table in tables)


def _add_night(table: TableSummary, history: Iterable[HealthPoint], date: str) -> TableSummary:
    by_date = {point.date: point for point in history}
    if not table.error:
        by_date[date] = HealthPoint(date=date, score=table.score, bytes=table.bytes)
    nights = tuple(by_date[day] for day in sorted(by_date))[-MAX_NIGHTS:]
    return table.replace(nights=nights)
