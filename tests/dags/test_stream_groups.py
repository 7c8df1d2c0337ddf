"""Streams in Airflow: pipelines of a group share one DAG, and a run's note has its last hour."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from deltaworks.airflow.restarts import (
    MAX_CHARACTERS,
    due_notes,
    hung_reports,
    run_note,
    start_first_snapshots,
    write_notes,
)
from deltaworks.airflow_client.api import Dag
from deltaworks.control.health.heartbeat import Heartbeat
from deltaworks.control.health.limits import HealthLimits
from deltaworks.control.health.report import Report, Subject
from deltaworks.control.health.throughput import EventTotals, Throughput
from deltaworks.control.health.verdicts import Verdict
from tests.dags.airflow_project import run_python, write_project

PARSE = """
import json
from airflow.dag_processing.dagbag import DagBag
bag = DagBag()
dags = {
    name: {
        "tags": sorted(dag.tags),
        "docs": dag.doc_md,
        "tasks": {task.task_id: getattr(task, "application_args", None) for task in dag.tasks},
        "memory": [getattr(getattr(task, "share", None), "driver_memory", None) for task in dag.tasks],
        "pools": [task.pool for task in dag.tasks],
    }
    for name, dag in bag.dags.items()
}
print(json.dumps(dags))
"""
NOW = datetime(2026, 3, 1, 12, 1, tzinfo=UTC)
RUN = "scheduled__2026-03-01T09:00:00+00:00"


def grouped(project: Path, pipeline: str, line: str) -> None:
    file = project / "include" / "pipelines" / pipeline / "pipeline.yaml"
    file.write_text(file.read_text() + f"\n{line}\n")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = write_project(tmp_path_factory.mktemp("grouped"))
    environment = project / "include" / "environments" / "local.yaml"
    environment.write_text(environment.read_text() + "\nstream_groups: {small: {driver_memory: 2g}}\n")
    grouped(project, "games", "stream_group: small")
    return project


def test_a_group_has_one_dag_instead_of_those_of_its_members(project: Path) -> None:
    dags: dict[str, Any] = run_python(PARSE, project)

    assert {name for name in dags if name.endswith(("__stream", "__stream_group"))} >= {"small__stream_group"}
    assert "games__stream" not in dags
    assert {"edits__stream", "games__gold", "games__maintenance"} <= set(dags)
    dag = dags["small__stream_group"]
    assert dag["tasks"] == {"ingest": ["--group", "small"]}
    assert (dag["memory"], dag["pools"]) == (["2g"], ["streams"])
    assert {"continuous", "stream", "small", "games", "telemetry"} <= set(dag["tags"])
    assert "`games`: Events of players" in dag["docs"]
    assert "deltaworks stop --group small" in dag["docs"]


def test_an_invalid_member_does_not_stop_its_group(project: Path) -> None:
    grouped(project, "edits", "stream_group: small\ncolour: blue")

    dags = run_python(PARSE, project)

    assert "edits__stream" not in dags
    assert "`edits` **has an invalid declaration" in dags["small__stream_group"]["docs"]
    assert "ingest" in dags["small__stream_group"]["tasks"]


def report(name: str, *, group: str = "small", run: str = "small__stream_group", **verdict: Any) -> Report:
    beat = Heartbeat(
        pipeline=name, owner="o", epoch=1, run=f"{run}/{RUN}/ingest/1", state="idle", written_at=NOW.isoformat(),
        started_at=NOW.isoformat(), trigger_seconds=5,
    )  # fmt: skip
    well = Verdict(kind="stream", name=name, state="healthy", cause="OK", detail="", next_step="", since=NOW)
    subject = Subject("stream", name, f"control/pipelines/{name}", HealthLimits(), group=group)
    return Report(subject, dataclasses.replace(well, **verdict), beat)


def test_the_note_of_a_groups_run_has_a_line_for_each_pipeline_the_unhealthy_first() -> None:
    parked = report("bees", state="unhealthy", cause="STREAM_PARKED")

    ((dag_id, run_id, text),) = due_notes([report("ants"), parked], {}, NOW)

    assert (dag_id, run_id) == ("small__stream_group", RUN)
    assert text.splitlines()[:2] == [
        "- bees: unhealthy (STREAM_PARKED), 0 rows in the last hour",
        "- ants: healthy (OK), 0 rows in the last hour",
    ]


def test_the_note_of_a_large_group_is_within_airflows_limit() -> None:
    ((_, _, text),) = due_notes([report(f"pipeline_{number:03}") for number in range(100)], {}, NOW)

    assert len(text) <= MAX_CHARACTERS
    assert text.splitlines()[-1].startswith("- as of 12:01")
    shown = sum("healthy" in line for line in text.splitlines())
    assert f"- and {100 - shown} more" in text


def test_members_have_separate_verdicts() -> None:
    before = {"ants__stream": report("ants").verdict}

    assert due_notes([report("ants")], before, NOW) == []
    assert due_notes([report("ants"), report("bees")], before, NOW), "nothing was known of bees"


@pytest.mark.parametrize(("others", "restarted"), [("HEARTBEAT_STALE", True), ("OK", False)])
def test_a_groups_driver_is_restarted_only_if_no_stream_is_alive(others: str, restarted: bool) -> None:
    hangs = report("ants", state="unhealthy", cause="HEARTBEAT_STALE")
    alone = report("cats", group="", run="cats__stream", state="unhealthy", cause="HEARTBEAT_STALE")

    hung = [item.subject.dag_id for item in hung_reports([hangs, report("bees", cause=others), alone])]

    assert hung == (["small__stream_group"] if restarted else []) + ["cats__stream"]


READ = EventTotals(events=10_000, rows=19_000, quarantined=500, reasons={("type_mismatch", "level"): 500})


def noted_report(
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
    assert run_note(noted_report(), NOW) == (
        "- healthy (OK) since 2026-03-01 12:01 UTC\n"
        "- last hour: 10,000 events read, 19,000 rows landed, 500 in quarantine (5.0 %: 500 type_mismatch at level)\n"
        "- lag: 3 files wait, the oldest for 90 s\n"
        "- as of 12:01 UTC, by deltaworks__health"
    )
    assert "lag: nothing waits" in run_note(noted_report(waits=0), NOW)


def test_a_note_is_within_airflows_limit() -> None:
    reasons = {("type_mismatch", "f" * 5_000): 1, ("rule", "g" * 5_000): 1}

    assert (
        len(run_note(noted_report(read=EventTotals(events=2, quarantined=2, reasons=reasons)), NOW)) <= MAX_CHARACTERS
    )


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
    item = noted_report(state=state)
    former = dataclasses.replace(item.verdict, state=before[0], cause=before[1]) if before else None  # type: ignore[arg-type]

    notes = due_notes([item], {"games__stream": former} if former else {}, now)

    assert [(dag_id, run_id) for dag_id, run_id, _ in notes] == ([("games__stream", RUN)] if due else [])


@pytest.mark.parametrize("run", ["manual", "", "games__stream", "other__stream/r/ingest/1"])
def test_a_stream_without_a_run_gets_no_note(run: str) -> None:
    assert due_notes([noted_report(run=run)], {}, NOW) == []


def test_every_note_goes_to_its_run() -> None:
    class Airflow:
        def __init__(self) -> None:
            self.notes: list[tuple[str, str, str]] = []

        def set_run_note(self, dag_id: str, run_id: str, text: str) -> None:
            self.notes.append((dag_id, run_id, text))

    airflow = Airflow()
    notes = due_notes([noted_report()], {}, NOW)

    write_notes(notes, airflow)  # type: ignore[arg-type]

    assert airflow.notes == notes != []


def test_the_first_snapshot_of_tables_is_one_run_a_day_of_that_step_alone() -> None:
    started: dict[tuple[str, str], Any] = {}

    class Airflow:
        def dag(self, dag_id: str) -> Dag | None:
            is_paused = dag_id.startswith("paused")
            return None if dag_id.startswith("new") else Dag(dag_id, is_paused, (), has_import_errors=False)

        def trigger(self, dag_id: str, *, run_id: str, conf: Any, note: str) -> None:
            started[dag_id, run_id] = conf

    for minute in (0, 10, 20):
        names = start_first_snapshots(["games", "paused", "new"], Airflow(), now=NOW + timedelta(minutes=minute))  # type: ignore[arg-type]
        assert names == ["games"]

    run = f"first_snapshot__{NOW:%Y-%m-%d}"
    assert started == {("games__maintenance", run): {"steps": ["snapshot_health"]}}
