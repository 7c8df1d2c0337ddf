"""Feeds and remediations have DAGs that run their processes as those of relays do."""

from __future__ import annotations

from typing import Any

from deltaworks.operations.dag_forms import pipeline_forms
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec
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


def test_only_a_pipeline_with_feeds_can_replay_one() -> None:
    def replays(spec: PipelineSpec) -> list[str]:
        return [one.action for form in pipeline_forms(spec) if form.kind == "replay" for one in form.operations]

    assert replays(shop()) == ["quarantine", "feed"]
    assert replays(shop(feeds=[])) == ["quarantine"]
