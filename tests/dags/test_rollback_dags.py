"""A rollback's DAG: it counts, a person approves what was counted, and no more than that is done."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dags.test_mutation_dags import ENVIRONMENT


@pytest.fixture
def dag() -> Any:
    from deltaworks.airflow.rollback_dags import rollback_dag
    from deltaworks.specs.pipeline import PipelineSpec

    spec = PipelineSpec.model_validate(
        {
            "pipeline": "shop",
            "description": "orders",
            "owner": "tests",
            "source": {"kind": "s3_sqs", "relay": "landing", "bucket": "landing"},
            "event": {"name": {"path": "name"}, "time": {"path": "time"}},
            "tables": [{"name": "orders", "catch_all": True}],
            "gold": {"tables": [{"name": "daily", "sql": "gold/daily.sql", "reads": ["orders"], "partition_by": "d"}]},
        }
    )
    return rollback_dag(spec, ENVIRONMENT)


def test_nothing_is_done_before_a_person_has_approved_what_was_counted(dag: Any) -> None:
    assert [task.task_id for task in dag.topological_sort()] == ["count", "approve", "restore", "rebuild_gold"]
    assert [len(task.upstream_task_ids) for task in dag.topological_sort()] == [0, 1, 1, 1]
    assert dag.get_task("approve").defaults is None
    assert "--no-dry-run" not in dag.get_task("count").arguments


def test_what_is_done_is_bounded_by_what_was_counted(dag: Any) -> None:
    arguments = dag.get_task("restore").arguments
    bound = arguments[arguments.index("--max-rows") + 1]

    assert "xcom_pull(task_ids='count', key='results')[0]['rows_out']" in bound
    assert arguments[-1] == "--no-dry-run"


def test_the_form_offers_the_tables_and_fills_the_job_in(dag: Any) -> None:
    from deltaworks.rework.restore import job

    assert dag.params.get_param("table").schema["enum"] == ["", "orders", "quarantine"]
    filled = {"table": "orders", "to_batch": "3", "to_time": "", "to_version": "", "repair": "none", "reason": "x y"}
    rendered = [each for each in dag.get_task("count").arguments if each.startswith("--") and "=" in each]
    assert [each.partition("=")[0] for each in rendered] == [f"--{name.replace('_', '-')}" for name in filled]
    assert job.point_of(version="", time="", batch="3").batch == 3
