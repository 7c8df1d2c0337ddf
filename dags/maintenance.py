"""Airflow DAGs <pipeline>__maintenance: OPTIMIZE, VACUUM and gold of each pipeline."""

from __future__ import annotations

from deltaworks.airflow import names
from deltaworks.airflow.invalid_dags import invalid_dag, parsed_catalog
from deltaworks.airflow.scheduled_dags import maintenance_dag

catalog = parsed_catalog()
for pipeline in catalog.pipelines.values():
    dag = maintenance_dag(pipeline, catalog.environment)
    globals()[dag.dag_id] = dag
for name, error in catalog.invalid_pipelines().items():
    dag = invalid_dag(names.maintenance_dag_id(name), error, task_ids=["optimize_tables"])
    globals()[dag.dag_id] = dag
