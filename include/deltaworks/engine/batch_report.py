"""What is said of a batch once it has landed: in the log, in heartbeats, in the progress table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """How a batch went. Seconds by phase; a resumed batch spent none in preparing.

    `rule_warnings` is JSON: rows by `table.rule`, None where no rule warned; `over_budget` too: payloads that went
    beyond a budget, by its name. `objects_missing` were gone before they could be read; some of them are named.
    `arrived_us` is when what was read arrived, in microseconds since 1970, sampled evenly by rank; empty where the
    source does not say. `events` were read, all in all; `rejected` are the most frequent reasons of quarantine: code,
    field and events; `rejected_events` the same by the name of the event in place of the field.
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
    """Counts by two texts, as a record read from JSON has them."""
    return tuple((code, name, int(events)) for code, name, events in rows)
