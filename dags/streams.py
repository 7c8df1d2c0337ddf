"""Airflow DAGs stream__<pipeline>: one endless Spark stream per folder of include/pipelines."""

from __future__ import annotations

from deltaworks.airflow import names
from deltaworks.airflow.endless_dags import stream_dag
from deltaworks.airflow.misdeclared_dags import misdeclared_dag
from deltaworks.specs.project import load_catalog

catalog = load_catalog(tolerant=True)
for pipeline in catalog.pipelines.values():
    dag = stream_dag(pipeline, catalog.environment)
    globals()[dag.dag_id] = dag
for name, error in catalog.wrong_pipelines().items():
    dag = misdeclared_dag(names.stream_dag_id(name), error, task_ids=["ingest"])
    globals()[dag.dag_id] = dag
