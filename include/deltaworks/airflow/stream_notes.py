"""Writes each stream's last hour as the note of its DAG run, which Airflow shows on the run's page and marks in the
grid.

A stream's run takes hours, so the health DAG updates its note. Airflow logs each change, so a note is written only
every few minutes, and immediately when the verdict changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from deltaworks.control.health.limits import age_seconds, format_duration
from deltaworks.control.health.report import Report
from deltaworks.control.health.verdicts import Verdict, describe_backlog
from deltaworks.control.provenance import airflow_run_of

if TYPE_CHECKING:
    from deltaworks.airflow_client.api import AirflowApi

NOTE_INTERVAL_MINUTES = 5
#: Airflow's limit.
MAX_CHARACTERS = 1_000


def run_note(item: Report, now: datetime) -> str:
    """Returns a run's note: state, rows, quarantine and lag. It contains counts, codes and field names, no values."""
    verdict, hour = item.verdict, item.throughput.last_hour(now)
    rejected = f"{hour.quarantined:,} in quarantine"
    if hour.quarantined:
        rejected += f" ({100 * hour.quarantined_share:.1f} %: {hour.describe_reasons()})"
    lag = describe_backlog(item.heartbeat) if item.heartbeat is not None else "no heartbeat"
    if item.heartbeat is not None and item.heartbeat.oldest_pending_at is not None:
        lag += f", the oldest for {format_duration(age_seconds(item.heartbeat.oldest_pending_at, now))}"
    lines = (
        f"{verdict.state} ({verdict.cause}) since {verdict.since:%Y-%m-%d %H:%M} UTC",
        f"last hour: {hour.events:,} events read, {hour.rows:,} rows landed, {rejected}",
        f"lag: {lag}",
        f"as of {now:%H:%M} UTC, by deltaworks__health",
    )
    return "\n".join(f"- {line}" for line in lines)[:MAX_CHARACTERS]


def group_run_note(items: Iterable[Report], now: datetime) -> str:
    """Returns the note of a run that several streams share: one line each, unhealthy ones first."""
    lines = []
    for item in sorted(items, key=lambda item: (not item.verdict.is_unhealthy, item.subject.name)):
        hour = item.throughput.last_hour(now)
        verdict = f"{item.verdict.state} ({item.verdict.cause})"
        lines.append(f"{item.subject.name}: {verdict}, {hour.rows:,} rows in the last hour")
    shown = [f"- {line}" for line in (*lines, f"as of {now:%H:%M} UTC, by deltaworks__health")]
    text = "\n".join(shown)
    while len(text) > MAX_CHARACTERS:
        # The last line is the time. Lines before it are dropped from the end, so healthy streams are dropped first.
        shown = [*shown[:-2], shown[-1]]
        text = "\n".join([*shown[:-1], f"- and {len(lines) - len(shown) + 1} more", shown[-1]])
    return text


def due_notes(reports: Iterable[Report], previous: Mapping[str, Verdict], now: datetime) -> list[tuple[str, str, str]]:
    """Returns the notes to write now as DAG, run and text. A stopped or paused stream gets a single note."""
    runs: dict[tuple[str, str], list[Report]] = {}
    for item in reports:
        dag_id, run_id = airflow_run_of(item.heartbeat.run if item.heartbeat else "")
        if item.subject.kind == "stream" and dag_id == item.subject.dag_id and run_id:
            runs.setdefault((dag_id, run_id), []).append(item)
    return [
        (dag_id, run_id, group_run_note(items, now) if items[0].subject.group else run_note(items[0], now))
        for (dag_id, run_id), items in runs.items()
        if any(_is_due(item, previous.get(item.subject.key), now) for item in items)
    ]


def _is_due(item: Report, before: Verdict | None, now: datetime) -> bool:
    has_changed = before is None or (before.state, before.cause) != (item.verdict.state, item.verdict.cause)
    is_idle = item.verdict.state in ("stopped", "paused")
    return has_changed or (now.minute % NOTE_INTERVAL_MINUTES == 0 and not is_idle)


def write_notes(notes: Iterable[tuple[str, str, str]], api: AirflowApi) -> None:
    """Writes notes. A run that Airflow no longer has is skipped.

    Raises:
        TransientError, ConfigError: Airflow does not answer or refuses.
    """
    for dag_id, run_id, text in notes:
        api.set_run_note(dag_id, run_id, text)
