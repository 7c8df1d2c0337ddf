"""Airflow DAGs <pipeline>__models: train the models of each pipeline that declares any."""

from __future__ import annotations

from deltaworks.airflow import names
from deltaworks.airflow.invalid_dags import invalid_dag, parsed_catalog
from deltaworks.airflow.scheduled_dags import training_dag

catalog = parsed_catalog()
for pipeline in catalog.pipelines.values():
    if pipeline.models:
        dag = training_dag(pipeline, catalog.environment)
        globals()[dag.dag_id] = dag
for name, error in catalog.invalid_pipelines("models").items():
    dag = invalid_dag(names.training_dag_id(name), error, task_ids=["train_model"])
    globals()[dag.dag_id] = dag
