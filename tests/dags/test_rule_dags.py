"""The DAG of the rule process: continuous, and only present if a pipeline declares rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaworks.airflow.continuous_dags import RULES
from deltaworks.airflow.dag_factory import needed_pipelines
from deltaworks.control.health.report import subjects
from deltaworks.specs.project import load_catalog
from tests.dags.airflow_project import write_project

RULE = """\
rules:
  - {name: few, reads: [events], sql: few.sql, fire: {below: 1}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = write_project(tmp_path)
    folder = root / "include" / "pipelines" / "games"
    (folder / "few.sql").write_text("SELECT event_time AS minute, 1 AS value FROM events WHERE event_time >= $from")
    with (folder / "pipeline.yaml").open("a") as file:
        file.write(RULE)
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(root))
    return root


def test_one_process_evaluates_the_rules_of_all_pipelines(project: Path) -> None:
    (dag,) = RULES.dags(load_catalog("local", root=project))

    assert (dag.dag_id, dag.schedule, dag.max_active_runs) == ("deltaworks__rules", "@continuous", 1)
    (task,) = dag.tasks
    assert (task.task_id, task.module, task.pool) == ("evaluate", "deltaworks.rules", "relays")
    assert "`few` of games" in (dag.doc_md or "")
    assert "(/deltaworks/dag/deltaworks__rules)" in (dag.doc_md or "")
    assert {"rules", "games", "continuous"} <= set(dag.tags)


def test_its_task_reads_all_pipelines(project: Path) -> None:
    assert needed_pipelines("deltaworks__rules") is None


def test_health_checks_the_process_if_rules_exist(project: Path, tmp_path: Path) -> None:
    (judged,) = [item for item in subjects(load_catalog("local", root=project)) if item.kind == "rules"]

    assert (judged.dag_id, judged.control) == ("deltaworks__rules", "control/rules")


def test_without_rules_there_is_no_dag(tmp_path: Path) -> None:
    catalog = load_catalog("local", root=write_project(tmp_path))

    assert list(RULES.dags(catalog)) == []
    assert [item for item in subjects(catalog) if item.kind == "rules"] == []
