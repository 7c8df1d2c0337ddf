"""Airflow DAGs <pipeline>__mutations: apply the requests of each pipeline that declares mutations."""

from __future__ import annotations

from deltaworks.airflow import names
from deltaworks.airflow.invalid_dags import invalid_dag, parsed_catalog
from deltaworks.airflow.scheduled_dags import mutation_dag

catalog = parsed_catalog()
for pipeline in catalog.pipelines.values():
    if pipeline.mutations is not None:
        dag = mutation_dag(pipeline, pipeline.mutations, catalog.environment)
        globals()[dag.dag_id] = dag
for name, error in catalog.invalid_pipelines("mutations").items():
    dag = invalid_dag(names.mutation_dag_id(name), error, task_ids=["mutate_tables"])
    globals()[dag.dag_id] = dag
