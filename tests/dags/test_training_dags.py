"""The DAG that trains a pipeline's models: weekly, with a form, with the resources of maintenance."""

from __future__ import annotations

from deltaworks.airflow.health_alerts import scheduled_jobs
from deltaworks.airflow.scheduled_dags import training_dag
from deltaworks.specs.project import load_catalog


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
