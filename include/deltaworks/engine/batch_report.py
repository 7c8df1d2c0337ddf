"""Report of a completed batch, for the log, heartbeats and the progress table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """Report of one batch. Durations are by phase; a batch resumed after a crash has no prepare time.

    Attributes:
        rule_warnings: JSON with rows by `table.rule`; None without warnings.
        over_budget: JSON with payloads by the name of the exceeded limit.
        objects_missing: number of objects that were deleted before they were read; `missing_examples` has some keys.
        events: number of events read, including rejected ones.
        rejected: most frequent quarantine reasons as (code, field, events).
        rejected_events: same as (code, event name, events).
        arrived_us: evenly spaced sample of arrival times in microseconds since 1970; empty if the source has none.
    """

    batch_id: int
    rows: int
    quarantined: int
    files_read: int
    bytes_read: int
    files_written: int
    tables: int
    resumed: bool
    prepare_seconds: float
    commit_seconds: float
    complete_seconds: float
    rule_warnings: str | None = None
    over_budget: str | None = None
    objects_missing: int = 0
    ranges_lost: int = 0
    missing_examples: tuple[str, ...] = ()
    events: int = 0
    rejected: tuple[tuple[str, str, int], ...] = ()
    arrived_us: tuple[int, ...] = ()
    rejected_events: tuple[tuple[str, str, int], ...] = ()


def parse_counts(rows: Iterable[tuple[str, str, int]]) -> tuple[tuple[str, str, int], ...]:
    """Converts counts read from JSON to tuples of (code, name, events)."""
    return tuple((code, name, int(events)) for code, name, events in rows)
