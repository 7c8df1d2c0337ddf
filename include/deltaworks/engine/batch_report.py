"""Report of a completed batch, for the log, heartbeats and the progress table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """Report of one batch. Durations are by phase; a resumed batch has no prepare time.

    `rule_warnings` is JSON: rows by `table.rule`, None without warnings. `over_budget` is JSON: payloads by the name of
        the
    exceeded limit. `objects_missing` counts objects deleted before they were read; `missing_examples` names some.
    `arrived_us` are arrival times in microseconds since 1970, a sample at even ranks; empty if the source has none.
    `events` counts all events read. `rejected` has the most frequent quarantine reasons (code, field, events);
    `rejected_events` the same with the event name instead of the field.
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
