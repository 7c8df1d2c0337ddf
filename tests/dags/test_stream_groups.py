"""Pipelines of a group share one DAG, which a search for any of them finds; others keep their own."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deltaworks.airflow.restarts import MAX_CHARACTERS, due_notes, hung_reports
from deltaworks.control.health.heartbeat import Heartbeat
from deltaworks.control.health.limits import HealthLimits
from deltaworks.control.health.report import Report, Subject
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
