"""The note of a stream's run: its last hour, written rarely, without failing the health check."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deltaworks.airflow.restarts import MAX_CHARACTERS, due_notes, run_note, write_notes
from deltaworks.control.health.heartbeat import Heartbeat
from deltaworks.control.health.limits import HealthLimits
from deltaworks.control.health.report import Report, Subject
from deltaworks.control.health.throughput import EventTotals, Throughput
from deltaworks.control.health.verdicts import Verdict

NOW = datetime(2026, 3, 1, 12, 1, tzinfo=UTC)
RUN = "scheduled__2026-03-01T09:00:00+00:00"
READ = EventTotals(events=10_000, rows=19_000, quarantined=500, reasons={("type_mismatch", "level"): 500})


def report(
    *, run: str = f"games__stream/{RUN}/ingest/1", read: EventTotals = READ, waits: int = 3, **verdict: Any
) -> Report:
    beat = Heartbeat(
        pipeline="games", owner="o", epoch=1, run=run, state="idle", written_at=NOW.isoformat(),
        started_at=NOW.isoformat(), trigger_seconds=5, backlog_files=waits,
        oldest_pending_at=(NOW - timedelta(seconds=90)).isoformat() if waits else None,
    )  # fmt: skip
    well = Verdict(kind="stream", name="games", state="healthy", cause="OK", detail="", next_step="", since=NOW)
    subject = Subject("stream", "games", "control/pipelines/games", HealthLimits())
    return Report(subject, dataclasses.replace(well, **verdict), beat, Throughput().with_batch(NOW, read))


def test_the_note_has_state_rows_quarantine_and_lag() -> None:
    assert run_note(report(), NOW) == (
        "- healthy (OK) since 2026-03-01 12:01 UTC\n"
        "- last hour: 10,000 events read, 19,000 rows landed, 500 in quarantine (5.0 %: 500 type_mismatch at level)\n"
        "- lag: 3 files wait, the oldest for 90 s\n"
        "- as of 12:01 UTC, by deltaworks__health"
    )
    assert "lag: nothing waits" in run_note(report(waits=0), NOW)


def test_a_note_is_within_airflows_limit() -> None:
    reasons = {("type_mismatch", "f" * 5_000): 1, ("rule", "g" * 5_000): 1}

    assert len(run_note(report(read=EventTotals(events=2, quarantined=2, reasons=reasons)), NOW)) <= MAX_CHARACTERS


@pytest.mark.parametrize(
    ("minute", "before", "state", "due"),
    [
        (1, ("healthy", "OK"), "healthy", False),
        (5, ("healthy", "OK"), "healthy", True),
        (1, ("lagging", "BACKLOG"), "healthy", True),
        (1, None, "healthy", True),
        (5, ("stopped", "OK"), "stopped", False),
        (1, ("healthy", "OK"), "stopped", True),
    ],
)
def test_a_note_is_written_every_five_minutes_and_where_the_verdict_has_changed(
    minute: int, before: tuple[str, str] | None, state: str, due: bool
) -> None:
    now = NOW.replace(minute=minute)
    item = report(state=state)
    former = dataclasses.replace(item.verdict, state=before[0], cause=before[1]) if before else None  # type: ignore[arg-type]

    notes = due_notes([item], {"games__stream": former} if former else {}, now)

    assert [(dag_id, run_id) for dag_id, run_id, _ in notes] == ([("games__stream", RUN)] if due else [])


@pytest.mark.parametrize("run", ["manual", "", "games__stream", "other__stream/r/ingest/1"])
def test_a_stream_without_a_run_gets_no_note(run: str) -> None:
    assert due_notes([report(run=run)], {}, NOW) == []


def test_every_note_goes_to_its_run() -> None:
    class Airflow:
        def __init__(self) -> None:
            self.notes: list[tuple[str, str, str]] = []

        def set_run_note(self, dag_id: str, run_id: str, text: str) -> None:
            self.notes.append((dag_id, run_id, text))

    airflow = Airflow()
    notes = due_notes([report()], {}, NOW)

    write_notes(notes, airflow)  # type: ignore[arg-type]

    assert airflow.notes == notes != []
