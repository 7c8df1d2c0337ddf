"""Feeds and remediations have DAGs that run their processes as those of relays do."""

from __future__ import annotations

from typing import Any

from deltaworks.specs.environment import EnvironmentSpec
from tests.unit.feeds.feed_stage import declared as shop
from tests.unit.remediation.remediation_stage import declared as shift

STORAGE = {"root": "file:///tmp/lake"}


def environment() -> EnvironmentSpec:
    return EnvironmentSpec.model_validate({"environment": "x", "lake": STORAGE, "landing": STORAGE, "messaging": {}})


def check(dag: Any, *, dag_id: str, task_id: str, program: list[str], arguments: list[str]) -> None:
    task = dag.get_task(task_id)
    assert (dag.dag_id, task.program, task.arguments) == (dag_id, program, arguments)
    assert (task.pool, dag.schedule, dag.max_active_runs) == ("relays", "@continuous", 1)
    assert "endless" in dag.tags
    for part in ("When red", "deltaworks stop", dag_id):
        assert part in dag.doc_md


def test_the_feeds_of_a_pipeline_are_one_process() -> None:
    from deltaworks.airflow.endless_dags import feeds_dag

    dag = feeds_dag(shop(), environment())
    program, arguments = ["-m", "deltaworks.feeds"], ["--feeds", "shop"]
    check(dag, dag_id="feeds__shop", task_id="feeds", program=program, arguments=arguments)


def test_a_remediation_is_a_process_of_its_own() -> None:
    from deltaworks.airflow.endless_dags import remediation_dag

    dag = remediation_dag(shift(), environment())
    program, arguments = ["-m", "deltaworks.remediation"], ["--remediation", "shift_cdn"]
    check(dag, dag_id="remediation__shift_cdn", task_id="remediation", program=program, arguments=arguments)


def test_only_a_pipeline_with_feeds_offers_to_replay_them() -> None:
    from deltaworks.airflow.operation_dags import offered_operations

    assert "replay_feed" in {declared.name for declared in offered_operations(shop())}
    assert "replay_feed" not in {declared.name for declared in offered_operations(shop(feeds=[]))}
