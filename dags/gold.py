"""Airflow DAGs <pipeline>__gold: rebuild the gold tables of each pipeline that declares any."""

from __future__ import annotations

from deltaworks.airflow import names
from deltaworks.airflow.invalid_dags import invalid_dag, parsed_catalog
from deltaworks.airflow.scheduled_dags import gold_dag

catalog = parsed_catalog()
for pipeline in catalog.pipelines.values():
    if pipeline.gold.tables:
        dag = gold_dag(pipeline, catalog.environment)
        globals()[dag.dag_id] = dag
for name, error in catalog.invalid_pipelines("gold").items():
    dag = invalid_dag(names.gold_dag_id(name), error, task_ids=["rebuild_gold"])
    globals()[dag.dag_id] = dag
