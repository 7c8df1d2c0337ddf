"""The DAGs of feeds, remediations, rules, the SQL servers and models: only where declared, with schedule, form and
resources.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deltaworks.airflow.continuous_dags import RULES
from deltaworks.airflow.dag_factory import needed_pipelines
from deltaworks.airflow.health_alerts import scheduled_jobs
from deltaworks.airflow.scheduled_dags import training_dag
from deltaworks.control.health.report import subjects
from deltaworks.operations.dag_forms import pipeline_forms
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from tests.dags.airflow_project import write_project
from tests.unit.feeds.feed_harness import declared as shop
from tests.unit.remediation.remediation_harness import declared as shift

STORAGE = {"root": "file:///tmp/lake"}
ENDLESS = {"pool": "relays", "schedule": "@continuous", "max_active_runs": 1, "continuous": True}


def environment() -> EnvironmentSpec:
    return EnvironmentSpec.model_validate({"environment": "x", "lake": STORAGE, "landing": STORAGE, "messaging": {}})


def describe_process(dag: Any, task_id: str) -> dict[str, Any]:
    """Returns module, arguments and settings of a DAG's task."""
    task = dag.get_task(task_id)
    return {
        "dag_id": dag.dag_id,
        "module": task.module,
        "arguments": task.arguments,
        "pool": task.pool,
        "schedule": dag.schedule,
        "max_active_runs": dag.max_active_runs,
        "continuous": "continuous" in dag.tags,
    }


def missing_in_runbook(dag: Any) -> list[str]:
    """Returns the parts that the runbook of a continuous process lacks."""
    return [part for part in ("When red", "deltaworks stop", dag.dag_id) if part not in dag.doc_md]


def test_the_feeds_of_a_pipeline_are_one_process() -> None:
    from deltaworks.airflow.continuous_dags import feeds_dag

    dag = feeds_dag(shop(), environment())
    run = {"dag_id": "shop__feeds", "module": "deltaworks.feeds", "arguments": ["--feeds", "shop"]}

    assert describe_process(dag, "feeds") == {**run, **ENDLESS}
    assert missing_in_runbook(dag) == []


def test_a_remediation_is_a_process_of_its_own() -> None:
    from deltaworks.airflow.continuous_dags import remediation_dag

    dag = remediation_dag(shift(), environment())
    arguments = ["--remediation", "shift_cdn"]
    run = {"dag_id": "shift_cdn__remediation", "module": "deltaworks.remediation", "arguments": arguments}

    assert describe_process(dag, "remediation") == {**run, **ENDLESS}
    assert missing_in_runbook(dag) == []


def test_the_sql_server_is_a_process_where_it_is_declared() -> None:
    from deltaworks.airflow.continuous_dags import SQL_SERVER, sql_server_dag

    server = {"users": "users.yaml", "roles": {"all": {"pipelines": "*"}}}
    declared = EnvironmentSpec.model_validate({**environment().model_dump(), "sql_server": server})
    assert declared.sql_server is not None
    dag = sql_server_dag(declared.sql_server, declared)
    arguments = ["--sql_server", "sql_server"]
    run = {"dag_id": "deltaworks__sql_server", "module": "deltaworks.sql_server", "arguments": arguments}

    assert describe_process(dag, "serve") == {**run, **ENDLESS}
    assert missing_in_runbook(dag) == []
    catalogs = [Catalog(environment=one, relays={}, pipelines={}, root=Path()) for one in (environment(), declared)]
    assert [len(list(SQL_SERVER.dags(catalog))) for catalog in catalogs] == [0, 1]


def test_spark_connect_is_a_continuous_spark_job_where_it_is_declared() -> None:
    from deltaworks.airflow.continuous_dags import SPARK_CONNECT, spark_connect_dag

    server = {"token": "env:CONNECT_TOKEN", "share": {"executors": 3}}
    declared = EnvironmentSpec.model_validate({**environment().model_dump(), "spark_connect": server})
    assert declared.spark_connect is not None

    dag = spark_connect_dag(declared.spark_connect, declared)

    task = dag.get_task("serve")
    assert (dag.dag_id, dag.schedule, task.pool) == ("deltaworks__spark_connect", "@continuous", "streams")
    assert Path(task.application).name == "serve_spark_connect.py"
    assert task.application_args == []
    assert (task.share.executors, task.share.uses_dynamic_allocation) == (3, True)
    assert missing_in_runbook(dag) == []
    catalogs = [Catalog(environment=one, relays={}, pipelines={}, root=Path()) for one in (environment(), declared)]
    assert [len(list(SPARK_CONNECT.dags(catalog))) for catalog in catalogs] == [0, 1]


def test_only_a_pipeline_with_feeds_can_replay_one() -> None:
    def replays(spec: PipelineSpec) -> list[str]:
        return [one.action for form in pipeline_forms(spec) if form.kind == "replay" for one in form.operations]

    assert replays(shop()) == ["quarantine", "feed"]
    assert replays(shop(feeds=[])) == ["quarantine"]


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


def test_models_are_trained_weekly_by_what_a_form_says() -> None:
    catalog = load_catalog("local")
    spec = catalog.pipeline("cdn_logs")

    dag = training_dag(spec, catalog.environment)

    assert dag.dag_id == "cdn_logs__models"
    assert {"models", "cdn_logs"} <= set(dag.tags)
    assert list(dag.params) == ["names", "until", "repeat"]
    assert dag.params.get_param("names").schema["examples"] == ["edge_failure"]
    (task,) = dag.tasks
    assert (task.task_id, task.pool) == ("train_model", catalog.environment.shares.of("maintenance").pool)
    assert "NO_GAIN" in (dag.doc_md or "")
    assert "`edge_failure`" in (dag.doc_md or "")
    assert ("cdn_logs__models", "0 4 * * 0") in list(scheduled_jobs(catalog))
